#include "forked.h"

#include <pthread.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace tfdist {
namespace {

// Held while the process is forked, so that the list is whole in the new process.
std::mutex mutex;
SocketOfProcess* first = nullptr;  // guarded by mutex
std::atomic<int> forks{0};

void Lock() { mutex.lock(); }
void Unlock() { mutex.unlock(); }

}  // namespace

// Runs in the new process, which has one thread, and may only call what a signal handler may.
void CloseSocketsAfterFork() {
  for (SocketOfProcess* each = first; each != nullptr; each = each->next_) each->socket_ = FileDescriptor();
  forks.fetch_add(1, std::memory_order_relaxed);
  mutex.unlock();
}

namespace {

void Register() {
  [[maybe_unused]] static const int registered = pthread_atfork(Lock, Unlock, CloseSocketsAfterFork);
}

}  // namespace

int Forks() {
  Register();
  return forks.load(std::memory_order_relaxed);
}

SocketOfProcess::SocketOfProcess(FileDescriptor socket) : socket_(std::move(socket)) {
  Register();
  std::lock_guard<std::mutex> lock(mutex);
  next_ = first;
  if (first != nullptr) first->previous_ = this;
  first = this;
}

SocketOfProcess::~SocketOfProcess() {
  std::lock_guard<std::mutex> lock(mutex);
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ == nullptr ? first : previous_->next_) = next_;
}

}  // namespace tfdist
