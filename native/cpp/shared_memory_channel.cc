#include "shared_memory_channel.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

namespace tfdist {
namespace {

// Small enough to stay in a second-level cache, together with what is summed. A multiple of 64.
constexpr size_t kRing = 512 << 10;
// Written bytes are published after each so many, so that the other process begins early.
constexpr size_t kPublished = 64 << 10;

}  // namespace

size_t SharedMemorySize() { return 2 * (sizeof(Ring) + kRing); }

SharedMemoryChannel::SharedMemoryChannel(FileDescriptor memory, bool is_first, FileDescriptor wake_peer)
    : wake_peer_(std::move(wake_peer)) {
  void* mapped = mmap(nullptr, SharedMemorySize(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory.get(), 0);
  if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "shared memory");
  mapped_ = static_cast<char*>(mapped);
  auto* rings = reinterpret_cast<Ring*>(mapped_);
  char* data = mapped_ + 2 * sizeof(Ring);
  out_ = rings + (is_first ? 0 : 1);
  in_ = rings + (is_first ? 1 : 0);
  out_data_ = data + (is_first ? 0 : kRing);
  in_data_ = data + (is_first ? kRing : 0);
}

// What was written stays in the memory of the other process.
SharedMemoryChannel::~SharedMemoryChannel() { munmap(mapped_, SharedMemorySize()); }

void SharedMemoryChannel::Wake(std::atomic<uint32_t>& sleeps) {
  // The fence orders what was published before the look at the flag; PrepareToSleep has its counterpart.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeps.load(std::memory_order_relaxed) && sleeps.exchange(0)) {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t result = write(wake_peer_.get(), &one, sizeof one);
  }
}

size_t SharedMemoryChannel::Send(const iovec* parts, int count) {
  uint64_t begin = written_, published = written_;
  bool is_full = false;
  for (int i = 0; i < count && !is_full; ++i) {
    const char* from = static_cast<const char*>(parts[i].iov_base);
    size_t left = parts[i].iov_len;
    while (left) {
      if (written_ - seen_taken_ == kRing) seen_taken_ = out_->taken.load(std::memory_order_acquire);
      size_t position = written_ % kRing;
      size_t bytes = std::min({left, kRing - (written_ - seen_taken_), kRing - position, kPublished});
      if (!bytes) {
        is_full = true;
        break;
      }
      std::memcpy(out_data_ + position, from, bytes);
      from += bytes;
      left -= bytes;
      written_ += bytes;
      if (written_ - published >= kPublished) {
        out_->written.store(written_, std::memory_order_release);
        published = written_;
        Wake(out_->reader_sleeps);
      }
    }
  }
  if (written_ != published) {
    out_->written.store(written_, std::memory_order_release);
    Wake(out_->reader_sleeps);
  }
  if (written_ == begin && is_lost_) throw PeerLost(End());
  return written_ - begin;
}

const char* SharedMemoryChannel::Peek(size_t least, size_t* available) {
  if (seen_written_ - taken_ < std::max<size_t>(least, 1)) {
    seen_written_ = in_->written.load(std::memory_order_acquire);
    // What the process has written before it ended is still read.
    if (seen_written_ - taken_ < least && is_lost_) throw PeerLost(End());
  }
  size_t position = taken_ % kRing;
  *available = std::min<size_t>(seen_written_ - taken_, kRing - position);
  return in_data_ + position;
}

void SharedMemoryChannel::Consume(size_t bytes) {
  taken_ += bytes;
  in_->taken.store(taken_, std::memory_order_release);
  Wake(in_->writer_sleeps);
}

size_t SharedMemoryChannel::Receive(char* to, size_t bytes) {
  size_t done = 0;
  while (done < bytes) {
    size_t available;
    const char* from = Peek(1, &available);
    size_t count = std::min({available, bytes - done, kPublished});
    if (!count) break;
    std::memcpy(to + done, from, count);
    Consume(count);
    done += count;
  }
  return done;
}

bool SharedMemoryChannel::HasNews(bool is_blocked) {
  // Bytes that were seen before and not taken belong to an operation that has to wait: only new ones are news.
  uint64_t written = in_->written.load(std::memory_order_acquire);
  bool has_news = written != std::exchange(seen_written_, written);
  uint64_t taken = out_->taken.load(std::memory_order_acquire);
  bool has_room = is_blocked && taken != std::exchange(seen_taken_, taken);
  return has_news || has_room;
}

void SharedMemoryChannel::PrepareToSleep(bool is_blocked) {
  in_->reader_sleeps.store(1, std::memory_order_relaxed);
  if (is_blocked) out_->writer_sleeps.store(1, std::memory_order_relaxed);
  // The fence orders the flags before the next look for news; Wake has its counterpart.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void SharedMemoryChannel::WakeUp() {
  in_->reader_sleeps.store(0, std::memory_order_relaxed);
  out_->writer_sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace tfdist
