#pragma once

#include "palimpsest/kernels/cuda/device/divisor.cuh"
#include "palimpsest/kernels/max_pool.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>

/// Tensors and windows as the kernels of max pooling see them. Indices are of type N: int32_t, which takes a
/// few instructions per index, or int64_t for tensors of 2^31 vectors and more.
namespace palimpsest::kernels::cuda::max_pool_detail {

/// A window along one dimension.
template <class N>
struct AnyAxis {
  int kernel;
  N stride, padding, dilation;
  Divisor<N> by_stride, by_dilation;

  __device__ __forceinline__ int positions() const { return kernel; }
  /// Returns the pixel of position 0 of window `o`, before the image where negative.
  __device__ __forceinline__ N start(N o) const { return o * stride - padding; }
  /// Returns the first position of a window that lies in the image, of `size` pixels; -1 if none does.
  __device__ __forceinline__ int first(N start, N size) const {
    const N k = start < 0 ? by_dilation.divide(dilation - 1 - start) : 0;
    return k < kernel && start + k * dilation < size ? static_cast<int>(k) : -1;
  }
  /// Calls function(k, pixels from the start) for the positions of a window that lie in the image.
  template <class Function>
  __device__ __forceinline__ void visit_positions(N start, N size, const Function& function) const {
    PALIMPSEST_NO_UNROLL
    for (int k = 0; k < kernel; ++k)
      if (const N pixel = start + k * dilation; pixel >= 0 && pixel < size) function(k, k * dilation);
  }
  /// Calls function(o, k) for the windows, of `windows`, that have position k at the pixel; ascending in o.
  template <class Function>
  __device__ __forceinline__ void visit_windows(N pixel, N windows, const Function& function) const {
    const N end = pixel + padding, before = end - (kernel - 1) * dilation;  // from the first padding pixel
    const N first = before > 0 ? by_stride.divide(before - 1) + 1 : 0;
    PALIMPSEST_NO_UNROLL
    for (N o = first; o < windows && o * stride <= end; ++o) {
      N k = end - o * stride;
      if (by_dilation.take_remainder(k) == 0) function(o, static_cast<int>(k));
    }
  }
};

/// A window of 2 or 3 pixels in steps of 2, which the compiler lays out. Dilation 1.
template <int kKernel>
struct StepTwoAxis {
  int32_t padding;

  __device__ __forceinline__ static constexpr int positions() { return kKernel; }
  __device__ __forceinline__ int32_t start(int32_t o) const { return 2 * o - padding; }
  // A window begins in the image or in the padding before it, which is smaller than the window.
  __device__ __forceinline__ int first(int32_t start, int32_t) const { return start < 0 ? -start : 0; }
  template <class Function>
  __device__ __forceinline__ void visit_positions(int32_t start, int32_t size,
                                                  const Function& function) const {
    PALIMPSEST_UNROLL
    for (int k = 0; k < kKernel; ++k)
      if (static_cast<uint32_t>(start + k) < static_cast<uint32_t>(size)) function(k, k);
  }
};

/// The vectors of a tensor: images of (h, w, inner) vectors. In NCHW each plane is an image, and inner is 1.
/// In channels-last inner is the number of vectors per pixel.
template <class N>
struct Vectors {
  N count, h, w, inner;
  Divisor<N> by_h, by_w, by_inner;

  // The number of a vector. Without a sign it may pass through places before the image on its way.
  using Number = std::make_unsigned_t<N>;
  __device__ __forceinline__ Number at(N image, N row, N column, N vector) const {
    return ((static_cast<Number>(image) * static_cast<Number>(h) + static_cast<Number>(row)) *
                static_cast<Number>(w) +
            static_cast<Number>(column)) *
               static_cast<Number>(inner) +
           static_cast<Number>(vector);
  }
};

/// The place of vector `number`.
template <class N>
struct Place {
  N image, h, w, inner;

  __device__ __forceinline__ Place(const Vectors<N>& vectors, N number) {
    inner = vectors.by_inner.take_remainder(number);
    w = vectors.by_w.take_remainder(number);
    h = vectors.by_h.take_remainder(number);
    image = number;
  }
};

inline int counted(int64_t size) {
  if (size > std::numeric_limits<int>::max())
    throw std::invalid_argument(
        "[max_pool] a height, width or number of channels may be up to 2^31 - 1, got " +
        std::to_string(size));
  return static_cast<int>(size);
}

/// Returns the vectors of the images of `size` pixels.
template <class N>
Vectors<N> vectors_of(const MaxPoolProblem& problem, Pair2 size, int vector) {
  const bool planes = problem.layout == Layout::kNCHW;
  const int64_t inner = planes ? 1 : problem.c / vector, images = planes ? problem.planes() : problem.n;
  return {.count = static_cast<N>(images * size.h * size.w * inner),
          .h = static_cast<N>(size.h),
          .w = static_cast<N>(size.w),
          .inner = static_cast<N>(inner),
          .by_h = Divisor<N>(std::max<N>(1, static_cast<N>(size.h))),
          .by_w = Divisor<N>(std::max<N>(1, static_cast<N>(size.w))),
          .by_inner = Divisor<N>(static_cast<N>(inner))};
}

template <class N>
AnyAxis<N> axis_of(int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  return {.kernel = counted(kernel),
          .stride = static_cast<N>(stride),
          .padding = static_cast<N>(padding),
          .dilation = static_cast<N>(dilation),
          .by_stride = Divisor<N>(static_cast<N>(stride)),
          .by_dilation = Divisor<N>(static_cast<N>(dilation))};
}

}  // namespace palimpsest::kernels::cuda::max_pool_detail
