// Sends large fragments on a thread of its own, while the thread of the engine receives and adds up: of a large sum
// through TCP, sending takes about as long as both.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "channel.h"

namespace tfdist {

// Bytes that the thread sends. They stay as they are until it is done.
struct Sending {
  Channel* channel = nullptr;
  iovec parts[3] = {};
  // What has come of it, once it is done: how many bytes the channel has taken, or why it takes none.
  size_t sent = 0;
  std::exception_ptr error;
  std::atomic<bool> is_done{false};
};

class Sender {
 public:
  // on_done: called on the thread of this object after each Sending.
  explicit Sender(std::function<void()> on_done);
  ~Sender();

  // Calls Channel::Send once. Another Sending of the same channel may start only after this one.
  void Start(Sending* sending);

  // Drops what has not begun, and waits for the call that runs, if one does. Nothing may start afterwards.
  void Stop();

 private:
  void Run();

  const std::function<void()> on_done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Sending*> waiting_;         // guarded by mutex_
  bool is_stopping_ = false;             // guarded by mutex_
  std::atomic<bool> has_to_do_{false};   // whether there is anything in waiting_, or the thread has to end
  std::thread thread_;
};

// From how many bytes on a message is handed to the thread; SIZE_MAX for none. Throws std::runtime_error if the variable
// TFDIST_NATIVE_SENDER_BYTES is set, but not to a number.
//
// Args:
//   ranks: how many ranks share the cores of this host.
size_t BytesForSender(int ranks);

}  // namespace tfdist
