#include "palimpsest/kernels/cuda/max_pool.h"

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/cuda/device/panels.h"
#include "palimpsest/kernels/cuda/device/vector16.cuh"

#include <cmath>
#include <initializer_list>
#include <limits>

namespace palimpsest::kernels::cuda {
namespace {

/// A problem as the kernels see it: `outer` images of (h, w, inner) vectors. In NCHW each plane is an image,
/// and inner is 1. In channels-last inner is the number of vectors per pixel.
struct Pool {
  int64_t outer;
  int inner;
  int in_h, in_w, out_h, out_w;
  int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;

  __host__ __device__ int64_t inputs() const { return outer * in_h * in_w * inner; }
  __host__ __device__ int64_t outputs() const { return outer * out_h * out_w * inner; }
};

/// The place of the vector with the given number.
struct Place {
  int64_t outer;
  int h, w, inner;

  __device__ __forceinline__ Place(int64_t number, int columns, int rows, int vectors) {
    inner = static_cast<int>(number % vectors), number /= vectors;
    w = static_cast<int>(number % columns), number /= columns;
    h = static_cast<int>(number % rows), outer = number / rows;
  }
};

template <int V>
struct alignas(V) Bytes {
  uint8_t at[V];
};

/// V values as they are stored; the maximum of 16-bit values is copied, never rounded.
template <class S, int V>
struct Lanes {
  S at[V];

  __device__ __forceinline__ void load(const S* from) {
    Stored<S, V> stored;
    stored.load(from);
    if constexpr (V == 1)
      at[0] = stored.bits;
    else
      for (int i = 0; i < V; ++i) at[i] = stored.bits.values[i];
  }
  __device__ __forceinline__ void store(S* to) const {
    Stored<S, V> stored;
    if constexpr (V == 1)
      stored.bits = at[0];
    else
      for (int i = 0; i < V; ++i) stored.bits.values[i] = at[i];
    stored.store(to);
  }
};

/// max_pool_forward. Grid: one thread per output vector, kThreads per block. Shared: nothing. Registers: at
/// most 64, so that four blocks run per multiprocessor.
template <class S, int V>
__global__ void __launch_bounds__(kThreads, 4)
    max_pool_forward_kernel(Pool p, const S* x, S* z, uint8_t* argmax) {
  const int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (number >= p.outputs()) return;
  const Place o(number, p.out_w, p.out_h, p.inner);
  Lanes<S, V> best;
  Bytes<V> place;
  PALIMPSEST_UNROLL
  for (int i = 0; i < V; ++i) {
    best.at[i] = narrow<S>(static_cast<accumulate_t<S>>(-INFINITY));
    place.at[i] = kNoPosition;
  }
  for (int ky = 0; ky < p.kernel_h; ++ky) {
    const int64_t h = int64_t{o.h} * p.stride_h - p.padding_h + int64_t{ky} * p.dilation_h;
    if (h < 0 || h >= p.in_h) continue;
    for (int kx = 0; kx < p.kernel_w; ++kx) {
      const int64_t w = int64_t{o.w} * p.stride_w - p.padding_w + int64_t{kx} * p.dilation_w;
      if (w < 0 || w >= p.in_w) continue;
      Lanes<S, V> in;
      in.load(x + (((o.outer * p.in_h + h) * p.in_w + w) * p.inner + o.inner) * V);
      PALIMPSEST_UNROLL
      for (int i = 0; i < V; ++i) {
        const accumulate_t<S> value = widen(in.at[i]);
        if (place.at[i] == kNoPosition || value > widen(best.at[i]) || value != value) {
          best.at[i] = in.at[i];
          place.at[i] = static_cast<uint8_t>(ky * p.kernel_w + kx);
        }
      }
    }
  }
  best.store(z + number * V);
  if (argmax) *reinterpret_cast<Bytes<V>*>(argmax + number * V) = place;
}

/// max_pool_backward. Grid: one thread per input vector, which adds up the windows around it. The rest is as
/// in forward.
template <class S, int V>
__global__ void __launch_bounds__(kThreads, 4)
    max_pool_backward_kernel(Pool p, const S* dz, const uint8_t* argmax, S* dx) {
  const int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (number >= p.inputs()) return;
  const Place at(number, p.in_w, p.in_h, p.inner);
  Values<S, V> sum;
  PALIMPSEST_UNROLL
  for (int i = 0; i < V; ++i) sum[i] = 0;
  // The window in which the pixel has the last position comes first in row order.
  for (int ky = p.kernel_h - 1; ky >= 0; --ky) {
    const int64_t down = int64_t{at.h} + p.padding_h - int64_t{ky} * p.dilation_h;
    if (down < 0 || down % p.stride_h != 0 || down / p.stride_h >= p.out_h) continue;
    for (int kx = p.kernel_w - 1; kx >= 0; --kx) {
      const int64_t right = int64_t{at.w} + p.padding_w - int64_t{kx} * p.dilation_w;
      if (right < 0 || right % p.stride_w != 0 || right / p.stride_w >= p.out_w) continue;
      const int64_t o =
          (((at.outer * p.out_h + down / p.stride_h) * p.out_w + right / p.stride_w) * p.inner + at.inner) *
          V;
      const auto place = *reinterpret_cast<const Bytes<V>*>(argmax + o);
      Lanes<S, V> gradient;
      gradient.load(dz + o);
      PALIMPSEST_UNROLL
      // Adds 0 rather than nothing: under a condition the compiler splits the wide load.
      for (int i = 0; i < V; ++i)
        sum[i] += place.at[i] == ky * p.kernel_w + kx ? widen(gradient.at[i]) : accumulate_t<S>(0);
    }
  }
  Stored<S, V> out;
  out.set(sum);
  out.store(dx + number * V);
}

int counted(int64_t size) {
  if (size > std::numeric_limits<int>::max())
    throw std::invalid_argument(
        "[max_pool] a height, width or number of channels may be up to 2^31 - 1, got " +
        std::to_string(size));
  return static_cast<int>(size);
}

Pool pool_of(const MaxPoolProblem& problem, int vector) {
  const bool planes = problem.layout == Layout::kNCHW;
  const PoolWindow& window = problem.window;
  return {.outer = planes ? problem.planes() : problem.n,
          .inner = planes ? 1 : counted(problem.c / vector),
          .in_h = counted(problem.in.h),
          .in_w = counted(problem.in.w),
          .out_h = counted(problem.out.h),
          .out_w = counted(problem.out.w),
          .kernel_h = counted(window.kernel_size.h),
          .kernel_w = counted(window.kernel_size.w),
          .stride_h = counted(window.stride.h),
          .stride_w = counted(window.stride.w),
          .padding_h = counted(window.padding.h),
          .padding_w = counted(window.padding.w),
          .dilation_h = counted(window.dilation.h),
          .dilation_w = counted(window.dilation.w)};
}

/// Calls function.template operator()<V>() with the number of values per access: 16 bytes if channels are
/// neighbours and all addresses allow it, else one value.
template <class S, class Function>
void with_vector(const MaxPoolProblem& problem, std::initializer_list<const void*> tensors,
                 const void* argmax, const Function& function) {
  constexpr int V = kLanes<S>;
  if constexpr (V > 1) {
    bool aligned = problem.layout == Layout::kChannelsLast && problem.c % V == 0 &&
                   reinterpret_cast<uintptr_t>(argmax) % V == 0;
    for (const void* tensor : tensors) aligned &= reinterpret_cast<uintptr_t>(tensor) % 16 == 0;
    if (aligned) return function.template operator()<V>();
  }
  function.template operator()<1>();
}

LaunchShape blocks_for(int64_t vectors) {
  return {.blocks = ceil_divide(vectors, kThreads), .threads = kThreads};
}

}  // namespace

void max_pool_forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax, Stream stream) {
  if (problem.planes() * problem.out.h * problem.out.w == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    with_vector<S>(problem, {x, z}, argmax, [&]<int V>() {
      const Pool p = pool_of(problem, V);
      launch("max_pool_forward", blocks_for(p.outputs()), stream, max_pool_forward_kernel<S, V>, p,
             static_cast<const S*>(x), static_cast<S*>(z), argmax);
    });
  });
}

void max_pool_backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx,
                       Stream stream) {
  if (problem.planes() * problem.in.h * problem.in.w == 0) return;
  dispatch_float(problem.dtype, [&]<class S>() {
    with_vector<S>(problem, {dz, dx}, argmax, [&]<int V>() {
      const Pool p = pool_of(problem, V);
      launch("max_pool_backward", blocks_for(p.inputs()), stream, max_pool_backward_kernel<S, V>, p,
             static_cast<const S*>(dz), argmax, static_cast<S*>(dx));
    });
  });
}

}  // namespace palimpsest::kernels::cuda
