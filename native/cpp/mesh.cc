#include "mesh.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "lifeline.h"
#include "sender.h"
#include "shared_memory_channel.h"
#include "tcp_channel.h"

namespace tfdist {
namespace {

constexpr size_t kIdBytes = 64;
constexpr uint32_t kVersion = 2;
// A process that connects and says nothing is dropped after this time.
constexpr auto kStrayTime = std::chrono::seconds(5);
// The host of a rank that says nothing for 60 s is lost. A lifeline never has other traffic than questions: the last one
// with an answer may have been just before the host was silent.
constexpr int kQuestions = 7;

// What a connection is for. Ranks that share memory have one connection, the lifeline.
enum class Use : uint32_t { kLifeline = 1, kStream = 2 };

// The first bytes on a connection, and the answer.
struct Greeting {
  char magic[8];
  uint32_t version;
  uint32_t rank;
  uint32_t to;
  uint32_t size;
  Use use;
  char id[kIdBytes];
};
static_assert(sizeof(Greeting) == 92);

[[noreturn]] void Raise(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

FileDescriptor Checked(int file, const char* what) {
  if (file < 0) Raise(what);
  return FileDescriptor(file);
}

// A machine whose processes can share memory through sockets: one kernel, and one network namespace, which abstract
// names of sockets belong to.
std::string Machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat about {};
  if (boot.empty() || stat("/proc/self/ns/net", &about)) return "";
  return boot + ":" + std::to_string(about.st_ino) + ":" + std::to_string(getuid());
}

struct Resolved {
  sockaddr_storage address{};
  socklen_t length = 0;
};

Resolved Resolve(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    throw std::runtime_error("expected a numeric address, received '" + host + "'");
  }
  Resolved result;
  std::memcpy(&result.address, found->ai_addr, found->ai_addrlen);
  result.length = found->ai_addrlen;
  freeaddrinfo(found);
  return result;
}

Resolved Abstract(const std::string& name) {
  Resolved result;
  auto* address = reinterpret_cast<sockaddr_un*>(&result.address);
  address->sun_family = AF_UNIX;
  size_t length = std::min(name.size(), sizeof address->sun_path - 1);
  std::memcpy(address->sun_path + 1, name.data(), length);
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return result;
}

bool WaitFor(int file, short what, Clock::time_point until) {
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) return false;
    pollfd item{file, what, 0};
    int result = poll(&item, 1, static_cast<int>(std::min<long long>(left, 1000)));
    if (result > 0) return true;
    if (result < 0 && errno != EINTR) Raise("poll");
  }
}

bool SendAll(int socket, const void* data, size_t bytes, Clock::time_point until) {
  const char* from = static_cast<const char*>(data);
  while (bytes) {
    ssize_t sent = send(socket, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      from += sent;
      bytes -= static_cast<size_t>(sent);
    } else if (sent < 0 && errno == EAGAIN) {
      if (!WaitFor(socket, POLLOUT, until)) return false;
    } else if (sent < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool ReceiveAll(int socket, void* data, size_t bytes, Clock::time_point until) {
  char* to = static_cast<char*>(data);
  while (bytes) {
    ssize_t received = recv(socket, to, bytes, MSG_DONTWAIT);
    if (received > 0) {
      to += received;
      bytes -= static_cast<size_t>(received);
    } else if (received == 0) {
      return false;
    } else if (errno == EAGAIN) {
      if (!WaitFor(socket, POLLIN, until)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool SendFiles(int socket, const int* files, int count) {
  char byte = 'f', control[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(static_cast<size_t>(count) * sizeof(int));
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(static_cast<size_t>(count) * sizeof(int));
  std::memcpy(CMSG_DATA(head), files, static_cast<size_t>(count) * sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

std::vector<FileDescriptor> ReceiveFiles(int socket, Clock::time_point until) {
  std::vector<FileDescriptor> files;
  if (!WaitFor(socket, POLLIN, until)) return files;
  char byte, control[CMSG_SPACE(2 * sizeof(int))] = {};
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return files;
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int file;
      std::memcpy(&file, CMSG_DATA(head) + i * sizeof(int), sizeof file);
      files.emplace_back(file);
    }
  }
  // The kernel drops the files for which this process has no descriptor left.
  if (message.msg_flags & MSG_CTRUNC) throw std::system_error(EMFILE, std::generic_category(), "shared memory");
  return files;
}

Greeting Greet(int rank, int to, int size, Use use, const std::string& id) {
  Greeting greeting{};
  std::memcpy(greeting.magic, "tfdist1", 8);
  greeting.version = kVersion;
  greeting.rank = static_cast<uint32_t>(rank);
  greeting.to = static_cast<uint32_t>(to);
  greeting.size = static_cast<uint32_t>(size);
  greeting.use = use;
  std::memcpy(greeting.id, id.data(), std::min(id.size(), kIdBytes));
  return greeting;
}

bool IsFrom(const Greeting& greeting, int rank, const Greeting& own) {
  Greeting expected = own;
  expected.rank = static_cast<uint32_t>(rank);
  // Compares all bytes, so that the time does not tell how much of the id is right.
  unsigned char differs = 0;
  const auto* a = reinterpret_cast<const unsigned char*>(&greeting);
  const auto* b = reinterpret_cast<const unsigned char*>(&expected);
  for (size_t i = 0; i < sizeof greeting; ++i) differs |= a[i] ^ b[i];
  return !differs;
}

FileDescriptor ConnectTo(const Resolved& to, bool is_tcp, Clock::time_point until) {
  while (Clock::now() < until) {
    FileDescriptor socket_ = Checked(
        socket(to.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
    int result = connect(socket_.get(), reinterpret_cast<const sockaddr*>(&to.address), to.length);
    if (result && errno == EINPROGRESS && is_tcp && WaitFor(socket_.get(), POLLOUT, until)) {
      socklen_t length = sizeof errno;
      int error = 0;
      getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      result = error ? -1 : 0;
    }
    if (!result) return socket_;
    // The other rank listens before it tells its address; a refusal comes from a full queue, or from a network that is
    // not up yet.
    poll(nullptr, 0, 50);
  }
  return FileDescriptor();
}

bool IsSameHost(const Address& one, const Address& other) {
  return one.host == other.host || (!one.machine.empty() && one.machine == other.machine);
}

// Returns the ranks of each host; nothing unless each host has the same number of them, and more than one.
Hosts HostsOf(const std::vector<Address>& addresses) {
  Hosts hosts;
  std::map<std::string, size_t> numbers;
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    const Address& address = addresses[rank];
    if (address.machine.empty() || address.local.empty()) return {};
    auto [found, is_new] = numbers.try_emplace(address.machine, hosts.size());
    if (is_new) hosts.emplace_back();
    hosts[found->second].push_back(static_cast<int>(rank));
  }
  bool is_even = std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) {
    return host.size() == hosts[0].size() && host.size() > 1;
  });
  return is_even ? hosts : Hosts{};
}

}  // namespace

std::string Address::ToString() const {
  std::ostringstream text;
  text << (name.empty() ? "-" : name) << ' ' << host << ' ' << port << ' ' << (machine.empty() ? "-" : machine) << ' ' << (local.empty() ? "-" : local);
  return text.str();
}

Address Address::FromString(const std::string& text) {
  Address address;
  std::istringstream parts(text);
  if (!(parts >> address.name >> address.host >> address.port >> address.machine >> address.local)) {
    throw std::runtime_error("expected an address 'NAME HOST PORT MACHINE SOCKET', received '" + text + "'");
  }
  if (address.machine == "-") address.machine.clear();
  if (address.local == "-") address.local.clear();
  return address;
}

Listener::Listener(const std::string& host, bool shares_memory, const std::string& id) : id_(id) {
  static std::atomic<int> number{0};
  Resolved own = Resolve(host, 0);
  tcp_ = Checked(socket(own.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
  if (bind(tcp_.get(), reinterpret_cast<sockaddr*>(&own.address), own.length) || listen(tcp_.get(), 1024)) {
    Raise("listening on " + host);
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  getsockname(tcp_.get(), reinterpret_cast<sockaddr*>(&bound), &length);
  address_.host = host;
  address_.port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                    : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  if (!shares_memory) return;
  std::string name = "tfdist-" + std::to_string(getpid()) + "-" + std::to_string(number++) + "-" +
                     std::to_string(address_.port);
  Resolved local = Abstract(name);
  local_ = Checked(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "socket");
  if (bind(local_.get(), reinterpret_cast<sockaddr*>(&local.address), local.length) || listen(local_.get(), 1024)) {
    local_ = FileDescriptor();
    return;
  }
  address_.machine = Machine();
  address_.local = name;
}

Mesh Listener::Connect(int rank, const std::vector<Address>& addresses, double timeout_seconds) {
  const int size = static_cast<int>(addresses.size());
  auto until = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  Mesh mesh;
  mesh.rank = rank;
  mesh.channels.resize(addresses.size());
  mesh.lifelines.resize(addresses.size());
  mesh.hosts = HostsOf(addresses);
  const Address& here = addresses[static_cast<size_t>(rank)];
  mesh.sender_bytes = BytesForSender(static_cast<int>(std::count_if(
      addresses.begin(), addresses.end(), [&](const Address& address) { return IsSameHost(address, here); })));
  mesh.wake = Checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd");
  auto is_local = [&](int peer) {
    const Address& other = addresses[static_cast<size_t>(peer)];
    const Address& own = addresses[static_cast<size_t>(rank)];
    return local_ && !own.machine.empty() && other.machine == own.machine && !other.local.empty();
  };
  auto missing = [&](const std::vector<int>& ranks, const std::string& what) {
    std::ostringstream text;
    text << "expected ";
    const char* separator = "";
    for (int peer : ranks) {
      const Address& other = addresses[static_cast<size_t>(peer)];
      text << separator << other.name << " (" << other.host << ':' << other.port << ')';
      separator = ", ";
    }
    text << ' ' << what << " within " << timeout_seconds << " s";
    throw std::runtime_error(text.str());
  };
  auto add = [&mesh](int peer, Use use, bool is_tcp, FileDescriptor socket) {
    if (use == Use::kStream) {
      mesh.channels[static_cast<size_t>(peer)] = std::make_unique<TcpChannel>(std::move(socket));
    } else {
      if (is_tcp) AskWhenIdle(socket.get(), kQuestions);
      mesh.lifelines[static_cast<size_t>(peer)] = std::make_unique<Lifeline>(std::move(socket));
    }
  };
  // Each rank connects to the lower ones. All greetings are sent before any answer is awaited.
  struct Connection {
    int peer;
    Use use;
    FileDescriptor socket;
  };
  std::vector<Connection> connections;
  for (int peer = 0; peer < rank; ++peer) {
    const Address& other = addresses[static_cast<size_t>(peer)];
    bool local = is_local(peer);
    for (Use use : {Use::kLifeline, Use::kStream}) {
      if (local && use == Use::kStream) continue;
      auto socket = ConnectTo(local ? Abstract(other.local) : Resolve(other.host, other.port), !local, until);
      Greeting own = Greet(rank, peer, size, use, id_);
      if (!socket || !SendAll(socket.get(), &own, sizeof own, until)) missing({peer}, "to be reached");
      connections.push_back({peer, use, std::move(socket)});
    }
  }
  for (auto& [peer, use, socket] : connections) {
    Greeting answer, own = Greet(peer, rank, size, use, id_);
    if (!ReceiveAll(socket.get(), &answer, sizeof answer, until) || !IsFrom(answer, peer, own)) {
      missing({peer}, "to answer");
    }
    if (is_local(peer)) {
      auto files = ReceiveFiles(socket.get(), until);
      int wake = mesh.wake.get();
      if (files.size() != 2 || !SendFiles(socket.get(), &wake, 1)) missing({peer}, "to share memory");
      mesh.channels[static_cast<size_t>(peer)] =
          std::make_unique<SharedMemoryChannel>(std::move(files[0]), false, std::move(files[1]));
    }
    add(peer, use, !is_local(peer), std::move(socket));
  }
  // Then the higher ones connect. A connection whose greeting is not of this run is dropped.
  struct Stranger {
    FileDescriptor socket;
    bool is_local;
    Clock::time_point since;
    Greeting greeting;
    size_t received = 0;
  };
  std::vector<Stranger> strangers;
  int awaited = 0;
  for (int peer = rank + 1; peer < size; ++peer) awaited += is_local(peer) ? 1 : 2;
  while (awaited) {
    std::vector<pollfd> items{{tcp_.get(), POLLIN, 0}, {local_.get(), POLLIN, 0}};
    for (auto& stranger : strangers) items.push_back({stranger.socket.get(), POLLIN, 0});
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0) {
      std::vector<int> ranks;
      for (int peer = rank + 1; peer < size; ++peer) {
        auto i = static_cast<size_t>(peer);
        if (!mesh.channels[i] || !mesh.lifelines[i]) ranks.push_back(peer);
      }
      missing(ranks, "to connect");
    }
    poll(items.data(), items.size(), static_cast<int>(std::min<long long>(left, 500)));
    for (size_t i = 0; i < strangers.size();) {
      Stranger& stranger = strangers[i];
      char* to = reinterpret_cast<char*>(&stranger.greeting) + stranger.received;
      ssize_t result = recv(stranger.socket.get(), to, sizeof(Greeting) - stranger.received, MSG_DONTWAIT);
      if (result > 0) stranger.received += static_cast<size_t>(result);
      bool is_over = result == 0 || (result < 0 && errno != EAGAIN && errno != EINTR) ||
                     Clock::now() > stranger.since + kStrayTime;
      if (stranger.received < sizeof(Greeting)) {
        if (is_over) {
          strangers.erase(strangers.begin() + static_cast<ptrdiff_t>(i));
        } else {
          ++i;
        }
        continue;
      }
      int peer = static_cast<int>(stranger.greeting.rank);
      Use use = stranger.greeting.use == Use::kStream ? Use::kStream : Use::kLifeline;
      Greeting expected = Greet(peer, rank, size, use, id_);
      bool is_right = peer > rank && peer < size && IsFrom(stranger.greeting, peer, expected) &&
                      stranger.is_local == is_local(peer) && !(stranger.is_local && use == Use::kStream) &&
                      !(use == Use::kStream ? bool(mesh.channels[static_cast<size_t>(peer)])
                                            : bool(mesh.lifelines[static_cast<size_t>(peer)]));
      Stranger known = std::move(stranger);
      strangers.erase(strangers.begin() + static_cast<ptrdiff_t>(i));
      Greeting answer = Greet(rank, peer, size, use, id_);
      if (!is_right || !SendAll(known.socket.get(), &answer, sizeof answer, until)) continue;
      if (known.is_local) {
        FileDescriptor memory = Checked(memfd_create("tfdist", MFD_CLOEXEC), "shared memory");
        if (ftruncate(memory.get(), static_cast<off_t>(SharedMemorySize()))) Raise("shared memory");
        int files[2] = {memory.get(), mesh.wake.get()};
        std::vector<FileDescriptor> wake;
        if (SendFiles(known.socket.get(), files, 2)) wake = ReceiveFiles(known.socket.get(), until);
        if (wake.size() != 1) missing({peer}, "to share memory");
        mesh.channels[static_cast<size_t>(peer)] =
            std::make_unique<SharedMemoryChannel>(std::move(memory), true, std::move(wake[0]));
      }
      add(peer, use, !known.is_local, std::move(known.socket));
      --awaited;
    }
    for (int listener : {tcp_.get(), local_.get()}) {
      if (listener < 0) continue;
      for (;;) {
        FileDescriptor socket(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
          // The connection stays in the queue: the next poll would find it at once, again and again.
          Raise("accepting the connection of another rank");
        }
        if (!socket) break;
        strangers.push_back({std::move(socket), listener == local_.get(), Clock::now(), {}});
      }
    }
  }
  return mesh;
}

}  // namespace tfdist
