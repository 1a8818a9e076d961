#include "lifeline.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

namespace tfdist {

Lifeline::~Lifeline() { shutdown(socket_.get(), SHUT_WR); }

void Lifeline::Tell(char code, std::string_view reason) {
  reason = reason.substr(0, kLongest);
  char prefix[kPrefix] = {code, static_cast<char>(reason.size() % 256), static_cast<char>(reason.size() / 256)};
  iovec parts[2] = {{prefix, kPrefix}, {const_cast<char*>(reason.data()), reason.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  // These are the first bytes: the connection has room for them.
  [[maybe_unused]] ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  shutdown(socket_.get(), SHUT_WR);
}

void Lifeline::Read() {
  while (!is_over_) {
    char surplus;
    bool is_full = received_ == sizeof told_;
    ssize_t result = recv(socket_.get(), is_full ? &surplus : told_ + received_, is_full ? 1 : sizeof told_ - received_,
                          MSG_DONTWAIT);
    if (result > 0) {
      received_ += is_full ? 0 : static_cast<size_t>(result);
    } else if (result < 0 && errno == EAGAIN) {
      return;
    } else {
      is_over_ = result == 0 || errno != EINTR;
    }
  }
}

void Lifeline::WaitForEnd(std::chrono::milliseconds time) {
  auto until = std::chrono::steady_clock::now() + time;
  for (Read(); !is_over_; Read()) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (left <= 0) return;
    pollfd item{socket_.get(), POLLIN, 0};
    poll(&item, 1, static_cast<int>(left));
  }
}

bool Lifeline::HasReason() const {
  return received_ >= kPrefix && Told() <= kLongest && received_ >= kPrefix + Told();
}

}  // namespace tfdist
