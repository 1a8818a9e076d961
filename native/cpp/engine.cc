#include "engine.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <sstream>
#include <system_error>
#include <utility>

#include "watch.h"

namespace tfdist {
namespace {

constexpr uint32_t kMagic = 0x74666431;
// A longer message is sent in several fragments, so that others are not kept waiting.
constexpr size_t kFragment = 1 << 20;
// Of a part that is not complete, at least so many bytes are sent at a time.
constexpr size_t kLeast = 64 << 10;
// Bytes that are summed at a time, so that the sums are sent early.
constexpr size_t kStep = 64 << 10;
constexpr size_t kAlignment = 64;
// After a failure: how long to wait for what another rank has sent or told before it ended, and for its end.
constexpr auto kPartingTime = std::chrono::milliseconds(300);
// A tag that was not used for so many other tags is not used again.
constexpr size_t kTags = 1 << 16;
// How often deadlines are checked while bytes move, and whether the other hosts answer.
constexpr auto kDeadlinesEvery = std::chrono::milliseconds(50);
constexpr auto kHostsEvery = std::chrono::seconds(1);
const char kZeros[kAlignment] = {};

size_t PaddingOf(size_t bytes) { return (kAlignment - bytes % kAlignment) % kAlignment; }

// Whether a rank that has ended such an operation has parts of all other ranks.
bool TakesAll(uint8_t kind) {
  return kind == static_cast<uint8_t>(Kind::kAllReduce) || kind == static_cast<uint8_t>(Kind::kReduceScatter) ||
         kind == static_cast<uint8_t>(Kind::kAllGather);
}

bool IsPointToPoint(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }

// Operations of the same tag are counted apart if they are not of all ranks.
uint64_t RoundKey(const Request& request) {
  if (!IsPointToPoint(request.kind)) return request.tag;
  uint64_t direction = request.kind == Kind::kSend ? 1 : 2;
  return (request.tag * 0x9e3779b97f4a7c15u) ^ ((direction << 32 | static_cast<uint32_t>(request.peer)) + 1) << 20;
}

void WriteTo(const FileDescriptor& event) {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t result = write(event.get(), &one, sizeof one);
}

// Each rank adds up a part of an array, and all have to round alike: the thread that made this one may treat numbers
// close to zero as zero, as the threads of TensorFlow do.
void UseDefaultRounding() {
#if defined(__x86_64__)
  constexpr unsigned kDefault = 0x1f80;
  _mm_setcsr(kDefault);
#endif
}

Code CodeOf(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? Code::kResourceExhausted : Code::kInternal;
}

// The code that another rank has told. Codes are those of TensorFlow, from 1 to 16.
Code CodeOf(char received) {
  return received >= 1 && received <= 16 ? static_cast<Code>(received) : Code::kUnavailable;
}

// Whether a fragment is the next one of a part.
bool IsNext(const Header& header, const Incoming& part) {
  if (part.is_complete || header.offset != part.received || header.bytes > part.bytes - part.received) return false;
  if (header.bytes == 0 && part.bytes != 0) return false;
  if (part.sum == nullptr) return true;
  // Summands are taken out of the stream as whole elements.
  const size_t width = SizeOf(static_cast<DType>(header.dtype));
  return header.bytes % width == 0;
}

const char* NameOf(uint8_t kind) {
  static const char* const names[] = {"none", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "send", "receive"};
  return kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

}  // namespace

Engine::Engine(Mesh mesh, std::vector<std::string> names)
    : rank_(mesh.rank),
      size_(static_cast<int>(mesh.channels.size())),
      names_(std::move(names)),
      hosts_(std::move(mesh.hosts)),
      sender_bytes_(mesh.sender_bytes),
      peers_(mesh.channels.size()),
      wake_(std::move(mesh.wake)),
      events_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!events_) throw std::system_error(errno, std::generic_category(), "epoll");
  auto add = [&](int file, uint32_t what, int number) {
    epoll_event event{};
    event.events = what | EPOLLET;
    event.data.u32 = static_cast<uint32_t>(number);
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, file, &event)) {
      throw std::system_error(errno, std::generic_category(), "epoll");
    }
  };
  add(wake_.get(), EPOLLIN, size_);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    Peer& peer = peers_[rank];
    peer.channel = std::move(mesh.channels[rank]);
    peer.lifeline = std::move(mesh.lifelines[rank]);
    if (peer.channel->Socket() >= 0) add(peer.channel->Socket(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, rank);
    // Its number tells it from the channel.
    add(peer.lifeline->Socket(), EPOLLIN | EPOLLRDHUP, size_ + 1 + rank);
  }
  bool is_of_use = std::any_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.channel && peer.channel->SendsOnAnotherThread();
  });
  if (is_of_use && sender_bytes_ != SIZE_MAX) sender_ = std::make_unique<Sender>([this] { Wake(); });
  thread_ = std::thread([this] { Run(); });
}

Engine::~Engine() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  WriteTo(wake_);
  thread_.join();
}

void Engine::Start(Request request) {
  if (IsOfParent()) {
    return request.done({Code::kAborted, "the communicator belongs to the process that this one was forked from"});
  }
  Status failure;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (is_running_ && !is_ending_) {
      requests_.push_back(std::move(request));
    } else {
      failure = failure_.code == Code::kOk ? Status{Code::kAborted, "the communicator has been closed"} : failure_;
    }
  }
  if (failure.code != Code::kOk) {
    request.done(failure);
  } else {
    Wake();
  }
}

void Engine::Wake() {
  if (is_asleep_.exchange(false)) WriteTo(wake_);
}

void Engine::Abort(Code code, const std::string& message) {
  if (IsOfParent()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    abort_ = {code, message};
  }
  WriteTo(wake_);
}

void Engine::Run() {
  pthread_setname_np(pthread_self(), "tfdist-network");
  UseDefaultRounding();
  for (;;) {
    try {
      if (!Turn()) return;
    } catch (const std::exception& error) {
      if (failing_.code != Code::kOk) return FailAll();
      Fail(CodeOf(error), names_[rank_] + " has failed: " + error.what());
    }
  }
}

bool Engine::Turn() {
  bool moved = false;
  TakeRequests();
  if (failing_.code == Code::kOk) {
    moved = Advance();
    if (failing_.code != Code::kOk) return true;
  } else if (PartFromAll(&moved)) {
    FailAll();
    return false;
  }
  if (moved) return true;
  bool is_over;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_over = is_ending_ && requests_.empty();
  }
  if (is_over && failing_.code == Code::kOk) {
    if (running_.empty()) {
      FailAll();
      return false;
    }
    Fail(Code::kAborted, names_[rank_] + " has closed its communicator");
    return true;
  }
  if (!WatchFor([this] { return HasNews() || TakeEvents(0); })) Sleep();
  return true;
}

bool Engine::Advance() {
  bool moved = false;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || peers_[rank].is_gone) continue;
    try {
      moved |= SendTo(peers_[rank]);
      moved |= ReceiveFrom(rank);
    } catch (const PeerLost& error) {
      Lose(rank, error.what());
    }
    if (failing_.code != Code::kOk) break;
  }
  size_t seen = 0, left = 0;
  while (seen < sums_.size() && failing_.code == Code::kOk) {
    auto one = sums_[seen++];
    moved |= SumUp(one.first, *one.second);
    if (one.second->ready != one.second->bytes) sums_[left++] = one;
  }
  sums_.erase(sums_.begin() + static_cast<ptrdiff_t>(left), sums_.begin() + static_cast<ptrdiff_t>(seen));
  moved |= CompleteFinished();
  if (!moved && failing_.code == Code::kOk) moved = SpillOne();
  auto now = Clock::now();
  if (!moved || now - deadlines_checked_ > kDeadlinesEvery) {
    deadlines_checked_ = now;
    if (failing_.code == Code::kOk) CheckTold();
    if (failing_.code == Code::kOk) CheckEnded();
    if (failing_.code == Code::kOk) CheckDeadlines();
  }
  if (now - hosts_checked_ > kHostsEvery) {
    hosts_checked_ = now;
    CheckHosts();
  }
  return moved;
}

bool Engine::PartFromAll(bool* moved) {
  bool is_parted = true;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || peers_[rank].is_gone) continue;
    *moved |= Part(peers_[rank]);
    is_parted &= peers_[rank].is_gone;
  }
  return is_parted || Clock::now() > parting_until_;
}

void Engine::TakeRequests() {
  std::vector<Request> requests;
  Status abort;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    requests.swap(requests_);
    std::swap(abort, abort_);
  }
  for (auto& request : requests) Add(std::move(request));
  if (failing_.code != Code::kOk) return;
  if (abort.code != Code::kOk) Fail(abort.code, abort.message);
  if (requests.empty()) return;
  for (int rank = 0; rank < size_; ++rank) {
    if (peers_[rank].is_gone) Lose(rank, peers_[rank].channel->End());
    if (failing_.code != Code::kOk) return;
  }
}

void Engine::Add(Request request) {
  auto done = request.done;
  try {
    auto op = Plan(std::move(request), rank_, size_, hosts_);
    const Request& asked = op->request;
    op->round = NextRound(RoundKey(asked));
    op->deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(std::min(asked.timeout_seconds, 1e9)));
    for (int peer = 0; peer < size_; ++peer) {
      for (auto& message : op->outgoing[peer]) peers_[peer].outgoing.emplace_back(op.get(), &message);
    }
    for (auto& sum : op->sums) sums_.emplace_back(op.get(), &sum);
    Operation* started = op.get();
    running_[asked.tag].push_back(std::move(op));
    if (started->unfinished == 0) Finished(started);
  } catch (const std::exception& error) {
    // What refers to the operation is not used any more after a failure.
    Fail(CodeOf(error), names_[rank_] + " has failed: " + error.what());
    done(failing_);
  }
}

uint32_t Engine::NextRound(uint64_t key) {
  auto [found, is_new] = rounds_.try_emplace(key);
  if (is_new) {
    found->second.place = used_.insert(used_.end(), key);
    if (used_.size() > kTags) {
      rounds_.erase(used_.front());
      used_.pop_front();
    }
  } else {
    used_.splice(used_.end(), used_, found->second.place);
  }
  return found->second.number++;
}

bool Engine::NextFragment(Peer& peer) {
  auto found = std::find_if(peer.outgoing.begin(), peer.outgoing.end(), [](const auto& item) {
    const Outgoing& message = *item.second;
    size_t ready = message.ready.Of(message.bytes);
    return ready == message.bytes || ready - message.sent >= kLeast;
  });
  if (found == peer.outgoing.end()) return false;
  auto [op, message] = *found;
  size_t ready = message->ready.Of(message->bytes);
  size_t bytes = std::min(ready - message->sent, kFragment);
  const Request& request = op->request;
  peer.header = Header{kMagic, static_cast<uint8_t>(request.kind), static_cast<uint8_t>(message->phase), 0,
                       static_cast<int32_t>(request.dtype), op->round, request.elements, request.tag, message->sent,
                       bytes};
  peer.from = message->from + message->sent;
  message->sent += bytes;
  peer.sending = message;
  peer.sends_for = op;
  if (message->sent == message->bytes) peer.outgoing.erase(found);
  peer.left = peer.header.bytes;
  peer.padding = PaddingOf(peer.left);
  peer.header_sent = 0;
  return true;
}

bool Engine::SendTo(Peer& peer) {
  bool moved = false, has_room = true;
  for (;;) {
    if (peer.is_handed_over) {
      if (!peer.handed_over.is_done.load()) return moved;
      has_room = TakeHandedOver(peer);
      if (peer.handed_over.error) std::rethrow_exception(peer.handed_over.error);
      moved |= has_room;
    }
    if (peer.header_sent == sizeof(Header) && !peer.left && !peer.padding) {
      peer.is_blocked = false;
      if (!NextFragment(peer)) return moved;
    }
    iovec parts[3] = {{reinterpret_cast<char*>(&peer.header) + peer.header_sent, sizeof(Header) - peer.header_sent},
                      {const_cast<char*>(peer.from), peer.left},
                      {const_cast<char*>(kZeros), peer.padding}};
    // What the channel did not take from the second thread is tried here, and then waits for an event as ever.
    if (sender_ && has_room && peer.left >= sender_bytes_ && peer.channel->SendsOnAnotherThread()) {
      peer.handed_over.channel = peer.channel.get();
      std::copy(std::begin(parts), std::end(parts), peer.handed_over.parts);
      peer.is_handed_over = true;
      sender_->Start(&peer.handed_over);
      return true;
    }
    size_t sent = peer.channel->Send(parts, 3);
    if (!sent) {
      peer.is_blocked = true;
      return moved;
    }
    moved = true;
    TakeSent(peer, sent);
  }
}

// Whether the second thread sends bytes of this memory. The sum of them may come before it has returned.
bool Engine::IsBeingSent(const Peer& peer, const char* from, size_t bytes) {
  if (!peer.is_handed_over || peer.handed_over.is_done.load()) return false;
  return from < peer.from + peer.left && peer.from < from + bytes;
}

// What has come of a fragment that the second thread was given. Returns whether the channel took anything.
bool Engine::TakeHandedOver(Peer& peer) {
  peer.is_handed_over = false;
  const size_t sent = peer.handed_over.sent;
  bytes_handed_over_.store(bytes_handed_over() + sent, std::memory_order_relaxed);
  TakeSent(peer, sent);
  return sent > 0;
}

// The channel has taken so many bytes of the fragment that is being sent.
void Engine::TakeSent(Peer& peer, size_t sent) {
  if (!sent) return;
  bytes_sent_.store(bytes_sent_.load(std::memory_order_relaxed) + sent, std::memory_order_relaxed);
  size_t of_header = std::min(sent, sizeof(Header) - peer.header_sent);
  peer.header_sent += of_header;
  sent -= of_header;
  size_t of_bytes = std::min(sent, peer.left);
  peer.from += of_bytes;
  peer.left -= of_bytes;
  peer.padding -= sent - of_bytes;
  if (peer.header_sent < sizeof(Header) || peer.left || peer.padding) return;
  if (peer.sending->sent == peer.sending->bytes) {
    Count(peer.sends_for);
    peer.sending = nullptr;
  }
}

Operation* Engine::Find(int rank, const Header& header) const {
  auto found = running_.find(header.tag);
  if (found == running_.end()) return nullptr;
  bool is_sent = header.kind == static_cast<uint8_t>(Kind::kSend);
  for (const auto& op : found->second) {
    if (op->round != header.round || IsPointToPoint(op->request.kind) != is_sent) continue;
    if (is_sent && (op->request.kind != Kind::kReceive || op->request.peer != rank)) continue;
    return op.get();
  }
  return nullptr;
}

void Engine::CheckMatch(int rank, const Header& header, const Operation* op) {
  const Request& own = op->request;
  bool is_sent = own.kind == Kind::kReceive;
  uint8_t kind = static_cast<uint8_t>(is_sent ? Kind::kSend : own.kind);
  if (header.kind == kind && header.dtype == static_cast<int32_t>(own.dtype) && header.elements == own.elements) return;
  std::ostringstream text;
  text << "expected all ranks to ask for the same operation, received " << NameOf(kind) << " of " << own.elements
       << ' ' << NameOf(own.dtype) << " elements on " << names_[rank_] << " and " << NameOf(header.kind) << " of "
       << header.elements << ' ' << NameOf(static_cast<DType>(header.dtype)) << " elements on " << names_[rank]
       << "; run the same program on all of them";
  Fail(Code::kInvalidArgument, text.str());
}

bool Engine::ReceiveFrom(int rank) {
  Peer& peer = peers_[rank];
  bool moved = false;
  for (;;) {
    if (!peer.has_header) {
      size_t available;
      const char* bytes = peer.channel->Peek(sizeof(Header), &available);
      if (available < sizeof(Header)) return moved;
      std::memcpy(&peer.received, bytes, sizeof(Header));
      peer.channel->Consume(sizeof(Header));
      if (peer.received.magic != kMagic) throw PeerLost("it sent bytes that are not of this protocol");
      peer.has_header = true;
      peer.to_receive = peer.received.bytes;
      peer.to_skip = PaddingOf(peer.to_receive);
      peer.receiving = nullptr;
      moved = true;
    }
    const Header& header = peer.received;
    if (peer.receiving == nullptr) {
      Operation* op = Find(rank, header);
      if (op == nullptr) return moved;
      CheckMatch(rank, header, op);
      if (failing_.code != Code::kOk) return true;
      Incoming* part = op->Find(rank, header.phase);
      if (part == nullptr || !IsNext(header, *part)) {
        throw PeerLost("it sent a fragment that nobody expects");
      }
      peer.receives_for = op;
      peer.receiving = part;
    }
    Incoming& part = *peer.receiving;
    if (peer.to_receive) {
      if (part.sum != nullptr || IsBeingSent(peer, part.to + part.received, peer.to_receive)) return moved;
      size_t bytes = peer.channel->Receive(part.to + part.received, peer.to_receive);
      if (!bytes) return moved;
      part.received += bytes;
      peer.to_receive -= bytes;
      if (part.is_own) peer.receives_for->passed_on = part.received;
      moved = true;
      if (peer.to_receive) continue;
    }
    if (peer.to_skip) {
      size_t available;
      peer.channel->Peek(peer.to_skip, &available);
      size_t bytes = std::min(available, peer.to_skip);
      peer.channel->Consume(bytes);
      peer.to_skip -= bytes;
      if (peer.to_skip) return moved;
    }
    moved = true;
    peer.has_header = false;
    if (part.received == part.bytes) {
      part.is_complete = true;
      Count(peer.receives_for);
    }
  }
}

// After a failure: waits until the other rank has ended too. What it still sends is taken out of the channel: a TCP
// connection that is closed with unread bytes loses the bytes that it has not sent.
bool Engine::Part(Peer& peer) {
  char skipped[4096];
  bool moved = false;
  peer.is_gone = peer.lifeline->IsOver();
  try {
    // The other rank may send faster than this one skips.
    while (Clock::now() < parting_until_ && peer.channel->Receive(skipped, sizeof skipped)) moved = true;
  } catch (const PeerLost&) {
    peer.is_gone = true;
  }
  return moved;
}

bool Engine::HasUnsent(const Operation* op) const {
  for (const auto& peer : peers_) {
    if (peer.sending != nullptr && peer.sends_for == op) return true;
    for (const auto& item : peer.outgoing) {
      if (item.first == op) return true;
    }
  }
  return false;
}

bool Engine::SumUp(Operation* op, Summation& sum) {
  bool moved = false;
  const size_t width = SizeOf(op->request.dtype), count = sum.ranks.size();
  const char* inputs[1024];
  std::vector<const char*> many;
  const char** in = inputs;
  if (count > 1024) {
    many.resize(count);
    in = many.data();
  }
  if (op->sends_first && sum.ready < sum.bytes && HasUnsent(op)) return false;
  while (sum.ready < sum.bytes) {
    size_t bytes = std::min(sum.bytes - sum.ready, kStep);
    for (size_t i = 0; i < count && bytes >= width; ++i) {
      const int rank = sum.ranks[i];
      if (rank == rank_) {
        in[i] = sum.own + sum.ready;
        bytes = std::min(bytes, sum.own_ready.Of(sum.bytes) - sum.ready);
        continue;
      }
      Peer& peer = peers_[rank];
      Incoming& part = *op->Find(rank, sum.phase);
      size_t available = 0;
      if (!part.spilled.empty()) {
        size_t position = sum.ready - part.spilled_from;
        available = part.spilled.size() - position;
        in[i] = part.spilled.data() + position;
      } else if (peer.has_header && peer.receiving == &part && peer.to_receive && !peer.is_gone) {
        try {
          in[i] = peer.channel->Peek(width, &available);
        } catch (const PeerLost& error) {
          Lose(rank, error.what());
          return true;
        }
        available = std::min(available, peer.to_receive);
      }
      bytes = std::min(bytes, available);
    }
    bytes -= bytes % width;
    if (!bytes) break;
    Sum(op->request.dtype, in, static_cast<int>(count), sum.to + sum.ready, bytes / width);
    sum.ready += bytes;
    moved = true;
    for (int rank : sum.ranks) {
      if (rank == rank_) continue;
      Incoming& part = *op->Find(rank, sum.phase);
      if (part.spilled.empty()) {
        peers_[rank].channel->Consume(bytes);
        peers_[rank].to_receive -= bytes;
        part.received += bytes;
      } else if (sum.ready - part.spilled_from == part.spilled.size()) {
        part.spilled = {};
      }
    }
  }
  if (sum.ready == sum.bytes) {
    Count(op);
    moved = true;
  }
  return moved;
}

// If one stream begins with summands of an operation and another stream with those of another operation, each of them
// may wait for the other: the summands are then taken out of the streams. So they are if another stream begins with an
// operation that is not started here: what it is started after may be behind the summands. So are those that wait for
// this rank's own summands, which come through other streams, or for this rank to send them: the other rank may take
// nothing more before its own summands are taken. And so are those of a rank that sends nothing more: whether it has
// sent all that it owes is behind them. They take no more memory than the summands of their operations.
bool Engine::SpillOne() {
  auto is_blocked = [](const Peer& peer) {
    return peer.has_header && peer.receiving != nullptr && peer.receiving->sum != nullptr && peer.to_receive;
  };
  auto waits_for_own = [this](const Peer& peer) {
    const Summation& sum = *peer.receiving->sum;
    const Operation& op = *peer.receives_for;
    return sum.own_ready.Of(sum.bytes) <= sum.ready || (op.sends_first && HasUnsent(&op));
  };
  Operation* first = nullptr;
  bool is_crossed = false;
  for (const auto& peer : peers_) {
    is_crossed |= peer.has_header && peer.receiving == nullptr;
    if (!is_blocked(peer)) continue;
    if (first == nullptr) first = peer.receives_for;
    is_crossed |= peer.receives_for != first;
  }
  bool moved = false;
  for (int rank = 0; rank < size_; ++rank) {
    Peer& peer = peers_[rank];
    if (!is_blocked(peer) || peer.is_gone) continue;
    if (!is_crossed && !waits_for_own(peer) && !peer.lifeline->IsOver()) continue;
    Incoming& part = *peer.receiving;
    if (part.spilled.empty()) part.spilled_from = part.received;
    const size_t width = SizeOf(peer.receives_for->request.dtype);
    size_t bytes = 0;
    try {
      const char* from = peer.channel->Peek(width, &bytes);
      // Whole elements: a part of one could not be summed, and would be in the way of the rest.
      bytes = std::min(bytes, peer.to_receive);
      bytes -= bytes % width;
      part.spilled.insert(part.spilled.end(), from, from + bytes);
      peer.channel->Consume(bytes);
    } catch (const PeerLost& error) {
      Lose(rank, error.what());
      return true;
    }
    part.received += bytes;
    peer.to_receive -= bytes;
    moved |= bytes > 0;
  }
  return moved;
}

void Engine::Count(Operation* op) {
  if (--op->unfinished == 0) Finished(op);
}

void Engine::Finished(Operation* op) {
  op->next_finished = finished_;
  finished_ = op;
}

bool Engine::CompleteFinished() {
  if (finished_ == nullptr) return false;
  std::vector<std::unique_ptr<Operation>> complete;
  while (finished_ != nullptr) {
    auto of_tag = running_.find(finished_->request.tag);
    auto& ops = of_tag->second;
    auto found = std::find_if(ops.begin(), ops.end(), [&](const auto& op) { return op.get() == finished_; });
    complete.push_back(std::move(*found));
    finished_ = finished_->next_finished;
    ops.erase(found);
    if (ops.empty()) running_.erase(of_tag);
  }
  // The list has the one that was finished last first.
  std::exception_ptr thrown;
  for (auto op = complete.rbegin(); op != complete.rend(); ++op) {
    try {
      (*op)->request.done({});
    } catch (...) {
      // The others have to be told all the same.
      thrown = std::current_exception();
    }
  }
  if (thrown) std::rethrow_exception(thrown);
  return true;
}

bool Engine::HasSummands(int rank, const Incoming& part) const {
  if (!part.spilled.empty()) return true;
  const Peer& peer = peers_[rank];
  if (part.sum == nullptr || !peer.has_header || peer.receiving != &part || peer.is_gone) return false;
  size_t available = 0;
  try {
    peer.channel->Peek(1, &available);
  } catch (const PeerLost&) {
  }
  return std::min(available, peer.to_receive) > 0;
}

std::vector<int> Engine::AwaitedBy(const Operation& op) const {
  auto awaited = AwaitedBy(op, false);
  return awaited.empty() ? AwaitedBy(op, true) : awaited;
}

// with_summands: also ranks whose summands wait here for those of other ranks.
std::vector<int> Engine::AwaitedBy(const Operation& op, bool with_summands) const {
  std::vector<int> awaited;
  // What a rank sends first waits for no other rank. What it sends later may wait for a rank that is named already.
  for (int phase : {0, 1, 255}) {
    for (int rank = 0; rank < size_; ++rank) {
      bool waits = false, has_summands = false;
      for (const auto& part : op.incoming[rank]) has_summands |= HasSummands(rank, part);
      if (has_summands && !with_summands) continue;
      for (const auto& part : op.incoming[rank]) waits |= !part.is_complete && part.phase <= phase;
      for (const auto& part : op.outgoing[rank]) waits |= part.sent < part.bytes && part.ready.count == nullptr;
      if (waits) awaited.push_back(rank);
    }
    if (awaited.empty()) continue;
    if (phase == 0 || op.sums.size() < 2) return awaited;
    // Another host waits for one of its ranks, which this rank does not know.
    std::vector<int> of_hosts;
    for (const auto& ranks : hosts_) {
      bool waits = std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
        return std::find(awaited.begin(), awaited.end(), rank) != awaited.end();
      });
      if (waits && std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) {
        of_hosts.insert(of_hosts.end(), ranks.begin(), ranks.end());
      }
    }
    return of_hosts.empty() ? awaited : of_hosts;
  }
  return awaited;
}

void Engine::CheckDeadlines() {
  auto now = Clock::now();
  for (const auto& [tag, ops] : running_) {
    for (const auto& op : ops) {
      if (op->deadline > now) continue;
      std::ostringstream text;
      text << "expected every rank to take part in " << NameOf(static_cast<uint8_t>(op->request.kind)) << " within "
           << op->request.timeout_seconds << " s, waited for ";
      const char* separator = "";
      for (int rank : AwaitedBy(*op)) {
        text << separator << names_[rank];
        separator = ", ";
      }
      text << "; see in its log what it does instead";
      return Fail(Code::kDeadlineExceeded, text.str());
    }
  }
}

void Engine::CheckHosts() {
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_ || peers_[rank].is_gone) continue;
    try {
      peers_[rank].channel->CheckHost();
    } catch (const PeerLost& error) {
      Lose(rank, error.what());
    }
  }
}

void Engine::Lose(int rank, const std::string& why) {
  Peer& peer = peers_[rank];
  peer.is_gone = true;
  if (peer.why.empty()) peer.why = why;
  if (peer.is_handed_over) {
    // The other rank may have received, and ended, before the second thread has returned from the call.
    while (!peer.handed_over.is_done.load()) sched_yield();
    TakeHandedOver(peer);
  }
  // A rank may end as soon as its own part is done.
  if (Needs(rank)) FailWithout(rank);
}

void Engine::FailWithout(int rank) {
  if (failing_.code != Code::kOk) return;
  Peer& peer = peers_[rank];
  // A rank that ends because of another one has told so before, and so have those that end because of this one.
  if (FailAsTold()) return;
  peer.lifeline->WaitForEnd(kPartingTime);
  if (FailAsTold()) return;
  Fail(Code::kUnavailable, "lost " + names_[rank] + ": " + (peer.why.empty() ? peer.channel->End() : peer.why));
}

bool Engine::FailAsTold() {
  for (auto& peer : peers_) {
    if (!peer.lifeline) continue;
    peer.lifeline->Read();
    if (!peer.lifeline->HasReason()) continue;
    Fail(CodeOf(peer.lifeline->code()), peer.lifeline->reason());
    return true;
  }
  return false;
}

// What a rank has sent before it has told that it ends is read first, unless it has to wait for operations that this
// rank has not started, or is long on its way.
void Engine::CheckTold() {
  for (const auto& peer : peers_) {
    if (!peer.told_at) continue;
    bool has_to_wait = peer.has_header && peer.receiving == nullptr;
    if (!peer.is_gone && !has_to_wait && Clock::now() < *peer.told_at + kPartingTime) continue;
    FailAsTold();
    return;
  }
}

// What another rank sends may show that an operation has begun which this rank has not started, and without which no
// rank has ended it. A rank that has ended by now never will: the operation has failed, however long this rank takes to
// start it. The others may not know that, if they have all that they need of the one that has ended.
void Engine::CheckEnded() {
  bool has_begun = false;
  for (int rank = 0; rank < size_; ++rank) {
    const Peer& peer = peers_[rank];
    if (!peer.has_header || peer.receiving != nullptr || !TakesAll(peer.received.kind)) continue;
    has_begun |= Find(rank, peer.received) == nullptr;
  }
  for (int rank = 0; rank < size_ && has_begun; ++rank) {
    if (rank == rank_ || (!peers_[rank].is_gone && !peers_[rank].lifeline->IsOver())) continue;
    return FailWithout(rank);
  }
}

bool Engine::Needs(int rank) const {
  if (!peers_[rank].outgoing.empty() || peers_[rank].sending != nullptr) return true;
  for (const auto& item : running_) {
    for (const auto& op : item.second) {
      for (const auto& part : op->incoming[rank]) {
        if (!part.is_complete) return true;
      }
    }
  }
  return false;
}

void Engine::Fail(Code code, const std::string& message) {
  if (failing_.code != Code::kOk) return;
  failing_ = {code, message};
  parting_until_ = Clock::now() + kPartingTime;
  for (auto& peer : peers_) {
    if (!peer.channel) continue;
    peer.lifeline->Tell(static_cast<char>(code), message);
    peer.channel->FinishSending();
  }
}

void Engine::FailAll() {
  std::vector<Request> requests;
  Status failure = failing_;
  if (failure.code == Code::kOk) failure = {Code::kAborted, "the communicator has been closed"};
  {
    std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure;
    is_running_ = false;
    requests.swap(requests_);
  }
  // It may be sending what belongs to the operations.
  if (sender_) sender_->Stop();
  for (auto& peer : peers_) {
    peer.channel.reset();
    peer.lifeline.reset();
  }
  sums_.clear();
  finished_ = nullptr;
  auto running = std::move(running_);
  running_.clear();
  for (auto& item : running) {
    for (auto& op : item.second) op->request.done(failure);
  }
  for (auto& request : requests) request.done(failure);
}

bool Engine::HasNews() {
  bool has_news = false;
  for (auto& peer : peers_) {
    if (!peer.channel || peer.is_gone) continue;
    has_news |= peer.channel->HasNews(peer.is_blocked);
    has_news |= failing_.code == Code::kOk && peer.is_handed_over && peer.handed_over.is_done.load();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return has_news || !requests_.empty() || abort_.code != Code::kOk;
}

void Engine::Sleep() {
  int milliseconds = 1000;
  auto now = Clock::now();
  auto within = [&](Clock::time_point when) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(when - now).count() + 1;
    milliseconds = static_cast<int>(std::clamp<long long>(left, 0, milliseconds));
  };
  for (const auto& item : running_) {
    for (const auto& op : item.second) within(op->deadline);
  }
  if (failing_.code != Code::kOk) {
    within(parting_until_);
  } else {
    for (const auto& peer : peers_) {
      if (peer.told_at) within(*peer.told_at + kPartingTime);
    }
  }
  is_asleep_.store(true);
  for (auto& peer : peers_) {
    if (peer.channel && !peer.is_gone) peer.channel->PrepareToSleep(peer.is_blocked);
  }
  TakeEvents(HasNews() ? 0 : milliseconds);
  is_asleep_.store(false);
  for (auto& peer : peers_) {
    if (peer.channel) peer.channel->WakeUp();
  }
}

bool Engine::TakeEvents(int milliseconds) {
  epoll_event found[64];
  int count = epoll_wait(events_.get(), found, 64, milliseconds);
  for (int i = 0; i < count; ++i) {
    const int number = static_cast<int>(found[i].data.u32), rank = number < size_ ? number : number - size_ - 1;
    if (number == size_ || !peers_[rank].channel) continue;
    Peer& peer = peers_[rank];
    if (number < size_) {
      peer.channel->OnSocketEvent();
      continue;
    }
    peer.lifeline->Read();
    if (peer.lifeline->HasReason() && !peer.told_at) peer.told_at = Clock::now();
    if (peer.lifeline->IsOver()) peer.channel->OnEnd();
  }
  return count > 0;
}

}  // namespace tfdist
