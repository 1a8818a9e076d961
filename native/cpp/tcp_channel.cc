#include "tcp_channel.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfdist {
namespace {

constexpr size_t kBuffer = 256 << 10;
// A host that does not answer for so long is lost: 30 s without traffic, and then three questions, each 10 s later.
constexpr int kIdleSeconds = 30, kProbeSeconds = 10, kProbes = 3;
constexpr auto kSilence = std::chrono::seconds(kIdleSeconds + kProbeSeconds * kProbes);

std::string Lost(const char* call) {
  return std::string(call) + ": " + std::strerror(errno);
}

}  // namespace

void AskWhenIdle(int socket, int questions) {
  int yes = 1;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof kIdleSeconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeSeconds, sizeof kProbeSeconds);
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &questions, sizeof questions);
}

TcpChannel::TcpChannel(FileDescriptor socket) : socket_(std::move(socket)), buffer_(new char[kBuffer]) {
  int yes = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  AskWhenIdle(socket_.get(), kProbes);
}

// Ends the connection even if another process has the socket too. What was sent before still arrives: to refuse what
// the other end sends could reset the connection, which loses it.
TcpChannel::~TcpChannel() { shutdown(socket_.get(), SHUT_WR); }

// The kernel asks a host only while nothing is on the way to it; else it repeats what it sent, for 15 minutes.
// TCP_USER_TIMEOUT would also end the connection to a host that answers, but whose process does not read for a while.
void TcpChannel::CheckHost() {
  tcp_info info{};
  socklen_t size = sizeof info;
  auto now = std::chrono::steady_clock::now();
  if (getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) || !info.tcpi_unacked) {
    unacknowledged_since_ = now;
    return;
  }
  auto silence = std::min<std::chrono::steady_clock::duration>(std::chrono::milliseconds(info.tcpi_last_ack_recv),
                                                               now - unacknowledged_since_);
  if (silence > kSilence) throw PeerLost("its host has not answered for 60 s");
}

size_t TcpChannel::Send(const iovec* parts, int count) {
  size_t sent = 0;
  if (!is_writable_) return 0;
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  // Before the call: the event that there is room again may come right after it.
  is_writable_ = false;
  ssize_t result = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (result >= 0) {
    sent = static_cast<size_t>(result);
    size_t asked = 0;
    for (int i = 0; i < count; ++i) asked += parts[i].iov_len;
    // A socket that takes only a part has no more room.
    if (sent == asked) is_writable_ = true;
  } else if (errno == EINTR || errno == ENOBUFS) {
    // No event tells that the kernel has memory again.
    is_writable_ = true;
  } else if (errno != EAGAIN) {
    throw PeerLost(Lost("sending failed"));
  }
  return sent;
}

void TcpChannel::FinishSending() { shutdown(socket_.get(), SHUT_WR); }

size_t TcpChannel::ReceiveParts(iovec* parts, int count) {
  if (!is_readable_) return 0;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  ssize_t result = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (result > 0) return static_cast<size_t>(result);
  if (result == 0) throw PeerLost(End());
  if (errno == EAGAIN || errno == EINTR) {
    is_readable_ = errno == EINTR;
    return 0;
  }
  throw PeerLost(Lost("receiving failed"));
}

const char* TcpChannel::Peek(size_t least, size_t* available) {
  if (end_ - begin_ < least) {
    if (begin_ > 0) {
      std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
      end_ -= begin_;
      begin_ = 0;
    }
    iovec part{buffer_.get() + end_, kBuffer - end_};
    end_ += ReceiveParts(&part, 1);
  }
  *available = end_ - begin_;
  return buffer_.get() + begin_;
}

size_t TcpChannel::Receive(char* to, size_t bytes) {
  size_t done = std::min(bytes, end_ - begin_);
  std::memcpy(to, buffer_.get() + begin_, done);
  begin_ += done;
  if (done == bytes) return done;
  // The buffer is empty: what follows the wanted bytes goes there with the same call.
  begin_ = end_ = 0;
  iovec parts[2] = {{to + done, bytes - done}, {buffer_.get(), kBuffer}};
  size_t received = ReceiveParts(parts, 2);
  size_t wanted = std::min(received, bytes - done);
  end_ = received - wanted;
  return done + wanted;
}

}  // namespace tfdist
