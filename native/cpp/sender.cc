#include "sender.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "watch.h"

namespace tfdist {
namespace {

// To hand over a smaller message takes longer than to send it.
constexpr size_t kLeast = 64 << 10;
// With fewer cores for each rank, those that compute have none to spare: two threads would share a core.
constexpr int kCoresOfRank = 4;
// Sets the number of bytes, for measurements and tests: 0 hands every message over, a number beyond all sizes none.
constexpr const char* kVariable = "TFDIST_NATIVE_SENDER_BYTES";

}  // namespace

Sender::Sender(std::function<void()> on_done) : on_done_(std::move(on_done)) {
  thread_ = std::thread([this] { Run(); });
}

Sender::~Sender() { Stop(); }

void Sender::Start(Sending* sending) {
  sending->sent = 0;
  sending->error = nullptr;
  sending->is_done.store(false);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back(sending);
    has_to_do_.store(true);
  }
  changed_.notify_one();
}

void Sender::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
    waiting_.clear();
    has_to_do_.store(true);
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Sender::Run() {
  pthread_setname_np(pthread_self(), "tfdist-sender");
  for (;;) {
    Sending* sending;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
      if (is_stopping_) return;
      sending = waiting_.front();
      waiting_.pop_front();
      has_to_do_.store(!waiting_.empty());
    }
    try {
      sending->sent = sending->channel->Send(sending->parts, 3);
    } catch (...) {
      sending->error = std::current_exception();
    }
    sending->is_done.store(true);
    on_done_();
    // The next one usually comes soon.
    WatchFor([this] { return has_to_do_.load(); });
  }
}

size_t BytesForSender(int ranks) {
  if (const char* text = std::getenv(kVariable); text != nullptr && *text != '\0') {
    char* end;
    errno = 0;
    unsigned long long bytes = std::strtoull(text, &end, 10);
    if (std::isdigit(static_cast<unsigned char>(*text)) && *end == '\0' && !errno) return static_cast<size_t>(bytes);
    throw std::runtime_error(std::string("expected a number of bytes in ") + kVariable + ", received '" + text +
                             "'; set it to a whole number, or to nothing");
  }
  cpu_set_t set;
  // The set has room for 1,024 cores.
  long cores = sched_getaffinity(0, sizeof set, &set) ? sysconf(_SC_NPROCESSORS_ONLN) : CPU_COUNT(&set);
  return cores >= static_cast<long>(kCoresOfRank) * ranks ? kLeast : SIZE_MAX;
}

}  // namespace tfdist
