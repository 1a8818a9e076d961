// A connection beside the channel of two ranks: it tells each of them that the other one has ended, and why, whatever
// is in the channel.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "file_descriptor.h"
#include "forked.h"

namespace tfdist {

class Lifeline {
 public:
  // socket: a connected socket, after its handshake.
  explicit Lifeline(FileDescriptor socket) : socket_(std::move(socket)) {}
  // Tells the end even if another process has the socket too.
  ~Lifeline();

  // Tells the other rank why this one ends. Nothing follows. Takes no memory, and returns at once.
  void Tell(char code, std::string_view reason);

  // Reads what the other rank has told, and returns at once; called when an event of the socket has come.
  void Read();

  // Waits for the end, at most so long.
  void WaitForEnd(std::chrono::milliseconds time);

  // Whether the other rank has ended. What it has sent before may still be in the channel.
  bool IsOver() const { return is_over_; }

  // Whether the other rank has told why, the code, and the reason.
  bool HasReason() const;
  char code() const { return told_[0]; }
  std::string reason() const { return {told_ + kPrefix, Told()}; }

  int Socket() const { return socket_.get(); }

 private:
  // The code, and the number of the bytes that follow.
  static constexpr size_t kPrefix = 3, kLongest = 1000;
  size_t Told() const { return static_cast<unsigned char>(told_[1]) + 256u * static_cast<unsigned char>(told_[2]); }

  SocketOfProcess socket_;
  char told_[kPrefix + kLongest];
  size_t received_ = 0;
  bool is_over_ = false;
};

}  // namespace tfdist
