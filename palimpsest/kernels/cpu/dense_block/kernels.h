#pragma once

#include "palimpsest/base/dtype.h"

#include <cstdint>

/// What cpu/dense_block.cpp asks of an instruction set: what is done to one chunk of pixels, by one thread.
/// Each set compiles the same source (dense_block_kernels.cpp) into a namespace of its own and hands out one
/// table for each type of storage.
///
/// Matrices lie as the layout has them: channels-last has a row for each pixel and a column for each channel,
/// NCHW a row for each channel and a column for each pixel. Scratch is in the type of the maths, on the
/// boundary of a vector, with rows of a whole number of vectors (`padded`); what stands behind the last
/// column of a row is arbitrary.
namespace palimpsest::kernels::cpu {

/// Leaky ReLU, with slope 1 the identity; `relu`: 0 below zero, whatever is there.
template <class T>
struct DenseActivation {
  T slope;
  bool relu;
};

/// Arguments of (x - mean) * scale + shift, one a channel; `padded` values each, those behind the last are 0.
template <class T>
struct DenseCoefficients {
  const T* mean;
  const T* scale;
  const T* shift;
};

template <class S>
struct DenseChunk {
  using T = accumulate_t<S>;
  int64_t pixels = 0, c = 0, out = 0;
  bool channels_last = false;
  int64_t x_stride = 0;  ///< between rows of x and of gradient
  int64_t h_stride = 0;  ///< between rows of h and of dh
  DenseActivation<T> activation{};
  DenseCoefficients<T> coefficients{};
  const S* x = nullptr;
  const T* w = nullptr;  ///< as DenseKernels::pack_weight leaves it
  T* z = nullptr;        ///< scratch: z_rows x z_stride
  int64_t z_stride = 0;
  T* h_scratch = nullptr;  ///< scratch: h's rows x h_scratch_stride
  int64_t h_scratch_stride = 0;
};

template <class S>
struct DenseBackwardChunk : DenseChunk<S> {
  using T = accumulate_t<S>;
  const S* dh = nullptr;
  T* dz = nullptr;             ///< scratch like z
  T* dh_transposed = nullptr;  ///< scratch of NCHW: pixels x padded(out); null where dw is
  const T* per_dy = nullptr;   ///< padded, as the coefficients
  T* gradient = nullptr;       ///< may be null
  /// What is added to, (out, padded(c)) in channels-last, (c, padded(out)) in NCHW; may be null.
  T* dw = nullptr;
  T* sum_dy = nullptr;  ///< padded(c) values, which are written; null where the two are not needed
  T* sum_dy_x = nullptr;
};

/// Rows of `width` values of the buffer and of a dense tensor.
template <class S>
struct DenseSlot {
  using T = accumulate_t<S>;
  int64_t rows, width;
  int64_t stride;  ///< of x and gradient; df's is width
  bool channels_last;
  const T *mean, *constant, *per_deviation;  ///< one a column in channels-last; of the one row in NCHW
  const S* x;
  const T* gradient;
  S* df;
};

template <class S>
struct DenseKernels {
  using T = accumulate_t<S>;
  int64_t lanes;  ///< of a vector
  /// (out, c) as the passes read it. Forward in channels-last: (c, padded(out)), else (out, padded(c)).
  void (*pack_weight)(int64_t out, int64_t c, const S* w, bool transposed, T* to);
  void (*forward)(const DenseChunk<S>& chunk, S* h);
  void (*backward)(const DenseBackwardChunk<S>& chunk);
  void (*feature_gradient)(const DenseSlot<S>& slot);
};

}  // namespace palimpsest::kernels::cpu
