// Memory for results. It is used again, since the first use of fresh memory takes longer than summing.
#pragma once

#include <cstddef>

namespace tfdist {

// Returns memory of at least so many bytes, aligned to 64 bytes.
__attribute__((visibility("default"))) void* TakeBuffer(size_t bytes);
__attribute__((visibility("default"))) void GiveBuffer(void* buffer, size_t bytes);

}  // namespace tfdist
