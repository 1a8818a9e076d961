#include "sum.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(TFDIST_SANITIZED)
// One binary serves processors with and without wide vectors. Sanitizers do not support the dispatch of functions.
#define TFDIST_VECTORS __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define TFDIST_VECTORS
#endif

namespace tfdist {
namespace {

// Elements that are summed at a time: few enough to stay in the first-level cache.
constexpr size_t kBlock = 2048;

template <typename T>
struct Plain {
  using Stored = T;
  using Summed = T;
  static inline T Load(T value) { return value; }
  static inline T Store(T value) { return value; }
};

// Signed integers are summed as unsigned ones, which wrap around; the bits are the same.
template <typename T>
struct Whole {
  using Stored = std::make_unsigned_t<T>;
  using Summed = std::make_unsigned_t<T>;
  static inline Stored Load(Stored value) { return value; }
  static inline Stored Store(Stored value) { return value; }
};

struct Bfloat16 {
  using Stored = uint16_t;
  using Summed = float;
  static inline float Load(uint16_t value) {
    uint32_t bits = static_cast<uint32_t>(value) << 16;
    float number;
    std::memcpy(&number, &bits, 4);
    return number;
  }
  static inline uint16_t Store(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    // Round to nearest, ties to even; a NaN stays a NaN.
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t nan = (bits >> 16) | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
  }
};

struct Float16 {
  using Stored = uint16_t;
  using Summed = float;
  static inline float Load(uint16_t value) {
    uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
    uint32_t rest = value & 0x7fff;
    // Normal numbers: the exponent's bias changes from 15 to 127. Subnormal numbers: a multiple of 2^-24.
    uint32_t normal_bits = (rest << 13) + (rest >= 0x7c00 ? 0x70000000u : 0x38000000u);
    float normal, subnormal = static_cast<float>(static_cast<int32_t>(rest)) * 5.9604644775390625e-8f;
    std::memcpy(&normal, &normal_bits, 4);
    float magnitude = rest < 0x400 ? subnormal : normal;
    uint32_t bits;
    std::memcpy(&bits, &magnitude, 4);
    bits |= sign;
    std::memcpy(&magnitude, &bits, 4);
    return magnitude;
  }
  static inline uint16_t Store(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    uint32_t sign = (bits >> 16) & 0x8000;
    bits &= 0x7fffffff;
    uint32_t result;
    if (bits > 0x7f800000) {
      result = 0x7e00;  // NaN
    } else if (bits >= 0x477ff000) {
      result = 0x7c00;  // 65520 and above round to infinity.
    } else if (bits < 0x38800000) {
      // Below 2^-14: adding 0.5 leaves the wanted multiple of 2^-24 in the last bits, rounded to nearest.
      float magnitude, half = 0.5f;
      std::memcpy(&magnitude, &bits, 4);
      magnitude += half;
      uint32_t sum;
      std::memcpy(&sum, &magnitude, 4);
      result = sum - 0x3f000000;
    } else {
      result = (bits - 0x38000000 + 0xfff + ((bits >> 13) & 1)) >> 13;
    }
    return static_cast<uint16_t>(sign | result);
  }
};

// Arrays may begin at any address: a message that arrives early is kept behind others, whose sizes are arbitrary.
template <typename Stored>
inline __attribute__((always_inline)) Stored Read(const char* from, size_t i) {
  Stored value;
  std::memcpy(&value, from + i * sizeof(Stored), sizeof(Stored));
  return value;
}

template <typename Stored>
inline __attribute__((always_inline)) void Write(Stored value, char* to, size_t i) {
  std::memcpy(to + i * sizeof(Stored), &value, sizeof(Stored));
}

template <typename Format>
inline __attribute__((always_inline)) void SumAs(const char* const* in, int inputs, char* out, size_t elements) {
  using Stored = typename Format::Stored;
  using Summed = typename Format::Summed;
  if (inputs == 2) {
    const char *a = in[0], *b = in[1];
    for (size_t i = 0; i < elements; ++i) {
      Write<Stored>(Format::Store(Format::Load(Read<Stored>(a, i)) + Format::Load(Read<Stored>(b, i))), out, i);
    }
    return;
  }
  Summed block[kBlock];
  for (size_t start = 0; start < elements; start += kBlock) {
    size_t count = std::min(kBlock, elements - start);
    const char* first = in[0] + start * sizeof(Stored);
    for (size_t i = 0; i < count; ++i) block[i] = Format::Load(Read<Stored>(first, i));
    for (int j = 1; j < inputs; ++j) {
      const char* more = in[j] + start * sizeof(Stored);
      for (size_t i = 0; i < count; ++i) block[i] = block[i] + Format::Load(Read<Stored>(more, i));
    }
    char* to = out + start * sizeof(Stored);
    for (size_t i = 0; i < count; ++i) Write<Stored>(Format::Store(block[i]), to, i);
  }
}

#define TFDIST_SUM(name, format)                                                                       \
  TFDIST_VECTORS void name(const char* const* in, int inputs, char* out, size_t elements) {            \
    SumAs<format>(in, inputs, out, elements);                                                          \
  }
TFDIST_SUM(SumFloat32, Plain<float>)
TFDIST_SUM(SumFloat64, Plain<double>)
TFDIST_SUM(Sum8, Whole<int8_t>)
TFDIST_SUM(Sum16, Whole<int16_t>)
TFDIST_SUM(Sum32, Whole<int32_t>)
TFDIST_SUM(Sum64, Whole<int64_t>)
TFDIST_SUM(SumBfloat16, Bfloat16)
TFDIST_SUM(SumFloat16, Float16)
#undef TFDIST_SUM

}  // namespace

size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUint8:
      return 1;
    case DType::kInt16:
    case DType::kUint16:
    case DType::kBfloat16:
    case DType::kFloat16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUint32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUint64:
      return 8;
  }
  return 0;
}

const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kFloat64: return "float64";
    case DType::kInt32: return "int32";
    case DType::kUint8: return "uint8";
    case DType::kInt16: return "int16";
    case DType::kInt8: return "int8";
    case DType::kInt64: return "int64";
    case DType::kBfloat16: return "bfloat16";
    case DType::kUint16: return "uint16";
    case DType::kFloat16: return "float16";
    case DType::kUint32: return "uint32";
    case DType::kUint64: return "uint64";
  }
  return "unknown";
}

void Sum(DType dtype, const char* const* in, int inputs, char* out, size_t elements) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUint8:
      return Sum8(in, inputs, out, elements);
    case DType::kInt16:
    case DType::kUint16:
      return Sum16(in, inputs, out, elements);
    case DType::kInt32:
    case DType::kUint32:
      return Sum32(in, inputs, out, elements);
    case DType::kInt64:
    case DType::kUint64:
      return Sum64(in, inputs, out, elements);
    case DType::kFloat32:
      return SumFloat32(in, inputs, out, elements);
    case DType::kFloat64:
      return SumFloat64(in, inputs, out, elements);
    case DType::kBfloat16:
      return SumBfloat16(in, inputs, out, elements);
    case DType::kFloat16:
      return SumFloat16(in, inputs, out, elements);
  }
}

}  // namespace tfdist
