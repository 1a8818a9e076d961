// A channel: an ordered stream of bytes to another rank, and one back.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace tfdist {

// Thrown if the other rank has gone; `what` says how.
class PeerLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// All calls return at once, but for the time in which another thread sends through the same socket. Each end of a channel
// belongs to one thread, but see SendsOnAnotherThread.
class Channel {
 public:
  virtual ~Channel() = default;

  // Sends as many bytes as the channel takes now, and returns their number.
  virtual size_t Send(const iovec* parts, int count) = 0;

  // Whether the channel has room now, and another thread may call Send while this one calls the other functions.
  virtual bool SendsOnAnotherThread() const { return false; }

  // Returns received bytes without taking them out of the stream, and sets their number. There are fewer than `least`
  // only if no more have arrived. `least` is at most 64.
  virtual const char* Peek(size_t least, size_t* available) = 0;

  // Takes bytes that Peek returned out of the stream.
  virtual void Consume(size_t bytes) = 0;

  // Takes at most so many bytes out of the stream, copies them, and returns their number.
  virtual size_t Receive(char* to, size_t bytes) = 0;

  // Whether the other end has sent, or has made room, since the last look, as far as no event of the socket tells.
  // `is_blocked`: whether this thread waits for room.
  virtual bool HasNews(bool is_blocked) = 0;

  // Before its thread sleeps: asks the other end to wake this thread after it has sent, or has made room.
  virtual void PrepareToSleep(bool is_blocked) = 0;

  // After its thread has slept.
  virtual void WakeUp() = 0;

  // The socket whose events wake the thread; -1 if there is none. OnSocketEvent: its readiness has changed.
  virtual int Socket() const { return -1; }
  virtual void OnSocketEvent() {}

  // The other end has gone; what it has sent before may still be in the stream.
  virtual void OnEnd() {}

  // Throws if the host of the other end has not answered for a long time; called about once per second.
  virtual void CheckHost() {}

  // Tells the other end that nothing more will be sent, behind what was sent before.
  virtual void FinishSending() {}

  // How it sends: "tcp" or "shared memory".
  virtual std::string Name() const = 0;

  // What has happened if the other end has gone, for messages.
  virtual std::string End() const = 0;
};

}  // namespace tfdist
