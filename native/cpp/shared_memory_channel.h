// A channel through memory that two processes of one host share.
#pragma once

#include <atomic>
#include <cstdint>

#include "channel.h"
#include "file_descriptor.h"

namespace tfdist {

// Bytes on the way in one direction. The numbers only grow; a position in the ring is a number modulo its size.
struct Ring {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> taken;
  // Whether the thread that reads, or that waits for room, sleeps and has to be woken.
  alignas(64) std::atomic<uint32_t> reader_sleeps;
  alignas(64) std::atomic<uint32_t> writer_sleeps;
};

// Size of a file of shared memory with one ring in each direction.
size_t SharedMemorySize();

class SharedMemoryChannel : public Channel {
 public:
  // Args:
  //   memory: a file of SharedMemorySize() bytes, of zeros at first.
  //   is_first: whether this end writes to the first ring.
  //   wake_peer: an eventfd that wakes the thread of the other end.
  SharedMemoryChannel(FileDescriptor memory, bool is_first, FileDescriptor wake_peer);
  ~SharedMemoryChannel() override;

  size_t Send(const iovec* parts, int count) override;
  const char* Peek(size_t least, size_t* available) override;
  void Consume(size_t bytes) override;
  size_t Receive(char* to, size_t bytes) override;
  bool HasNews(bool is_blocked) override;
  void PrepareToSleep(bool is_blocked) override;
  void WakeUp() override;
  void OnEnd() override { is_lost_ = true; }
  std::string Name() const override { return "shared memory"; }
  std::string End() const override { return "its process ended"; }

 private:
  void Wake(std::atomic<uint32_t>& sleeps);

  FileDescriptor wake_peer_;
  char* mapped_;
  Ring *out_, *in_;
  char *out_data_, *in_data_;
  uint64_t written_ = 0, taken_ = 0, seen_written_ = 0, seen_taken_ = 0;
  bool is_lost_ = false;
};

}  // namespace tfdist
