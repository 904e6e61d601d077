#include "palimpsest/kernels/max_pool.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

// The truth of the tests: one plain loop per formula, in double, rounded once where a value is stored.
namespace palimpsest::kernels::reference {
namespace {

// ---- Storage: `read` is exact, `write` rounds to the nearest, ties to even

template <class T>
struct Plain {
  using Stored = T;
  static double read(T value) { return static_cast<double>(value); }
  static T write(double value) { return static_cast<T>(value); }
};

/// A 16-bit number with `kMantissa` stored bits and an exponent biased by `kBias`, read and written by its
/// definition.
template <int kMantissa, int kBias>
struct Narrow {
  using Stored = uint16_t;
  static constexpr int kExponentMask = (1 << (15 - kMantissa)) - 1;
  static constexpr int kInfinity = kExponentMask << kMantissa;

  static double read(uint16_t bits) {
    const double sign = bits >> 15 ? -1 : 1;
    const int exponent = (bits >> kMantissa) & kExponentMask, mantissa = bits & ((1 << kMantissa) - 1);
    if (exponent == kExponentMask)
      return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - kMantissa);
    return sign * std::ldexp(mantissa + (1 << kMantissa), exponent - kBias - kMantissa);
  }

  static uint16_t write(double value) {
    const int sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return static_cast<uint16_t>(sign | kInfinity | 1 << (kMantissa - 1));
    if (value == 0) return static_cast<uint16_t>(sign);
    if (std::isinf(value)) return static_cast<uint16_t>(sign | kInfinity);
    const int exponent = std::max(std::ilogb(value), 1 - kBias);
    // In units of the last place. A carry out of the mantissa increments the exponent, and leads from the
    // largest number to infinity, as the format defines it.
    const auto units =
        static_cast<int64_t>(std::nearbyint(std::ldexp(std::abs(value), kMantissa - exponent)));
    const int64_t bits = ((int64_t{exponent} - 1 + kBias) << kMantissa) + units;
    return static_cast<uint16_t>(sign | static_cast<int>(std::min<int64_t>(bits, kInfinity)));
  }
};

template <class Function>
void dispatch_storage(DType dtype, const Function& function) {
  switch (dtype) {
    case DType::f32:
      return function(Plain<float>{});
    case DType::f64:
      return function(Plain<double>{});
    case DType::f16:
      return function(Narrow<10, 15>{});
    case DType::bf16:
      return function(Narrow<7, 127>{});
  }
}

// ---- Geometry

int64_t index(const MaxPoolProblem& problem, Pair2 size, int64_t n, int64_t c, int64_t h, int64_t w) {
  return problem.layout == Layout::kNCHW ? ((n * problem.c + c) * size.h + h) * size.w + w
                                         : ((n * size.h + h) * size.w + w) * problem.c + c;
}

template <class Function>
void for_each_output(const MaxPoolProblem& problem, const Function& function) {
  for (int64_t n = 0; n < problem.n; ++n)
    for (int64_t c = 0; c < problem.c; ++c)
      for (int64_t oh = 0; oh < problem.out.h; ++oh)
        for (int64_t ow = 0; ow < problem.out.w; ++ow)
          function(n, c, oh, ow, index(problem, problem.out, n, c, oh, ow));
}

struct Pixel {
  int64_t h, w;
};

Pixel pixel(const PoolWindow& window, int64_t oh, int64_t ow, int64_t position) {
  return {oh * window.stride.h - window.padding.h + position / window.kernel_size.w * window.dilation.h,
          ow * window.stride.w - window.padding.w + position % window.kernel_size.w * window.dilation.w};
}

bool in_image(const MaxPoolProblem& problem, Pixel at) {
  return at.h >= 0 && at.h < problem.in.h && at.w >= 0 && at.w < problem.in.w;
}

}  // namespace

void max_pool_forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax) {
  dispatch_storage(problem.dtype, [&]<class Storage>(Storage) {
    using Stored = typename Storage::Stored;
    for_each_output(problem, [&](int64_t n, int64_t c, int64_t oh, int64_t ow, int64_t o) {
      Stored best = Storage::write(-HUGE_VAL);
      int64_t place = kNoPosition;
      for (int64_t position = 0; position < problem.window.positions(); ++position) {
        const Pixel at = pixel(problem.window, oh, ow, position);
        if (!in_image(problem, at)) continue;
        const Stored stored = static_cast<const Stored*>(x)[index(problem, problem.in, n, c, at.h, at.w)];
        const double value = Storage::read(stored);
        if (place == kNoPosition || value > Storage::read(best) || std::isnan(value)) {
          best = stored;
          place = position;
        }
      }
      static_cast<Stored*>(z)[o] = best;
      if (argmax) argmax[o] = static_cast<uint8_t>(place);
    });
  });
}

void max_pool_backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx) {
  dispatch_storage(problem.dtype, [&]<class Storage>(Storage) {
    using Stored = typename Storage::Stored;
    std::vector<double> sums(static_cast<std::size_t>(problem.planes() * problem.in.h * problem.in.w));
    for_each_output(problem, [&](int64_t n, int64_t c, int64_t oh, int64_t ow, int64_t o) {
      const Pixel at = pixel(problem.window, oh, ow, argmax[o]);
      if (argmax[o] < problem.window.positions() && in_image(problem, at))
        sums[index(problem, problem.in, n, c, at.h, at.w)] +=
            Storage::read(static_cast<const Stored*>(dz)[o]);
    });
    for (std::size_t i = 0; i < sums.size(); ++i) static_cast<Stored*>(dx)[i] = Storage::write(sums[i]);
  });
}

}  // namespace palimpsest::kernels::reference
