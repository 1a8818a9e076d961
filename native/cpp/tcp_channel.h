// A channel through a TCP connection to a rank on another host.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>

#include "channel.h"
#include "file_descriptor.h"
#include "forked.h"

namespace tfdist {

// After 30 s without traffic, asks the other host every 10 s whether it is there, and ends the connection after so many
// questions without an answer.
void AskWhenIdle(int socket, int questions);

class TcpChannel : public Channel {
 public:
  // socket: a connected socket, after its handshake.
  explicit TcpChannel(FileDescriptor socket);
  ~TcpChannel() override;

  size_t Send(const iovec* parts, int count) override;
  bool SendsOnAnotherThread() const override { return is_writable_; }
  const char* Peek(size_t least, size_t* available) override;
  void Consume(size_t bytes) override { begin_ += bytes; }
  size_t Receive(char* to, size_t bytes) override;
  // Bytes that are there and were not read belong to an operation that has to wait; new ones come with an event.
  bool HasNews(bool) override { return false; }
  void PrepareToSleep(bool) override {}
  void WakeUp() override {}
  int Socket() const override { return socket_.get(); }
  void OnSocketEvent() override { is_readable_ = is_writable_ = true; }
  void CheckHost() override;
  void FinishSending() override;
  std::string Name() const override { return "tcp"; }
  std::string End() const override { return "its connection ended"; }

 private:
  size_t ReceiveParts(iovec* parts, int count);

  SocketOfProcess socket_;
  std::unique_ptr<char[]> buffer_;
  size_t begin_ = 0, end_ = 0;
  // Events of the socket are edge-triggered: it is ready until a call says that it is not.
  bool is_readable_ = true;
  std::atomic<bool> is_writable_{true};
  // Since then, the other host has always had bytes to acknowledge.
  std::chrono::steady_clock::time_point unacknowledged_since_ = std::chrono::steady_clock::now();
};

}  // namespace tfdist
