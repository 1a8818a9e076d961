#include "buffers.h"

#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace tfdist {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMostKept = 1 << 30;

std::mutex mutex;
// Never destroyed: TensorFlow may free tensors until the process ends.
auto& kept = *new std::map<size_t, std::vector<void*>>;
size_t kept_bytes = 0;

size_t SizeClass(size_t bytes) {
  if (bytes <= kAlignment) return kAlignment;
  // Four sizes for each power of two, so that at most a fifth is wasted.
  size_t step = kAlignment;
  while (step * 8 <= bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

}  // namespace

void* TakeBuffer(size_t bytes) {
  size_t size = SizeClass(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto found = kept.find(size);
    if (found != kept.end() && !found->second.empty()) {
      void* buffer = found->second.back();
      found->second.pop_back();
      kept_bytes -= size;
      return buffer;
    }
  }
  void* buffer = std::aligned_alloc(kAlignment, size);
  if (buffer == nullptr) throw std::bad_alloc();
  return buffer;
}

void GiveBuffer(void* buffer, size_t bytes) {
  size_t size = SizeClass(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (kept_bytes + size <= kMostKept) {
      kept[size].push_back(buffer);
      kept_bytes += size;
      return;
    }
  }
  std::free(buffer);
}

}  // namespace tfdist
