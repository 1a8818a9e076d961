// Sums of arrays, element by element.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tfdist {

// The numbers are those of TensorFlow's DataType, so that kernels pass them on.
enum class DType : int32_t {
  kFloat32 = 1,
  kFloat64 = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBfloat16 = 14,
  kUint16 = 17,
  kFloat16 = 19,
  kUint32 = 22,
  kUint64 = 23,
};

// Size of an element in bytes; 0 for a dtype that cannot be summed.
__attribute__((visibility("default"))) size_t SizeOf(DType dtype);

// Name of a dtype as TensorFlow has it; "unknown" for a dtype that cannot be summed.
const char* NameOf(DType dtype);

// Writes the sum of several arrays: out[i] = ((in[0][i] + in[1][i]) + in[2][i]) + ..., always in this order.
//
// Sums of float16 and bfloat16 are computed in float32 and rounded once. Integers wrap around. `out` may be one of the
// inputs.
void Sum(DType dtype, const char* const* in, int inputs, char* out, size_t elements);

}  // namespace tfdist
