#pragma once

#include "palimpsest/base/dtype.h"

#include <cstdint>

/// The functions that an instruction set provides for dense_block.cpp: single-threaded, over one chunk of
/// pixels. Each set compiles kernels.cpp into its own namespace and provides one table per storage type.
///
/// Matrices lie as the layout says: channels-last has a row per pixel and a column per channel, NCHW has a
/// row per channel and a column per pixel. Scratch is in the accumulate type and begins on the boundary of a
/// vector; its rows are a whole number of vectors (`padded`), and values behind the last column are
/// arbitrary.
namespace palimpsest::kernels::cpu::dense_block {

/// Leaky ReLU, or the identity (slope 1), or ReLU (`relu`), which maps -infinity to 0.
template <class T>
struct StraightLines {
  T slope;
  bool relu;
};

/// Arguments of (x - mean) * scale + shift, one per channel; `padded` values each, 0 behind the last.
template <class T>
struct Coefficients {
  const T* mean;
  const T* scale;
  const T* shift;
};

template <class S>
struct Chunk {
  using T = accumulate_t<S>;
  int64_t pixels = 0, c = 0, out = 0;
  bool channels_last = false;
  int64_t x_stride = 0;  ///< between rows of x and of gradient
  int64_t h_stride = 0;  ///< between rows of h and of dh
  StraightLines<T> activation{};
  Coefficients<T> coefficients{};
  const S* x = nullptr;
  const T* w = nullptr;  ///< packed by Kernels::pack_weight
  int64_t w_stride = 0;  ///< between rows of w
  T* z = nullptr;        ///< scratch: z_rows x z_stride
  int64_t z_stride = 0;
  T* h_scratch = nullptr;  ///< scratch: rows of h x h_scratch_stride
  int64_t h_scratch_stride = 0;
  /// What the thread reads next: rows of a chunk of x, x_stride apart; null if there is none. The product of the forward
  /// pass prefetches it, or that of dw.
  const S* next_x = nullptr;
  int64_t next_rows = 0, next_width = 0;
};

/// `c` may be a block of the layer's channels: x, w, the coefficients, per_dy, gradient and dw are at the block's
/// first channel then, and the sums are the block's.
template <class S>
struct BackwardChunk : Chunk<S> {
  using T = accumulate_t<S>;
  const S* dh = nullptr;
  T* dh_transposed = nullptr;  ///< scratch, NCHW only: pixels x padded(out); null if dw is
  const T* per_dy = nullptr;   ///< padded, like the coefficients
  T* gradient = nullptr;       ///< may be null
  /// The products are written to dw, or added: in channels-last a row per output, w_stride apart; in NCHW
  /// (c, padded(out)). May be null.
  T* dw = nullptr;
  bool add_dw = false;
  T* sum_dy = nullptr;  ///< padded(c) values, which are written; both sums are null if not needed
  T* sum_dy_x = nullptr;
};

/// Rows of `width` values of the buffer and of a contiguous df.
template <class S>
struct Slot {
  using T = accumulate_t<S>;
  int64_t rows, width;
  int64_t stride;  ///< of x and gradient; that of df is width
  bool channels_last;
  const T *mean, *constant,
      *per_deviation;  ///< one per column in channels-last; one, for the single row, in NCHW
  const S* x;
  const T* gradient;
  S* df;
};

template <class S>
struct Kernels {
  using T = accumulate_t<S>;
  int64_t lanes;    ///< of a vector
  int64_t columns;  ///< of a product that are computed together
  /// Packs the weight (out, c): if `transposed` (forward in channels-last) to (c, padded(out)), else to
  /// (out, padded(c)). Writes rows [begin, end) of `to`.
  void (*pack_weight)(int64_t out, int64_t c, const S* w, bool transposed, T* to, int64_t begin, int64_t end);
  void (*forward)(const Chunk<S>& chunk, S* h);
  void (*backward)(const BackwardChunk<S>& chunk);
  void (*feature_gradient)(const Slot<S>& slot);
};

}  // namespace palimpsest::kernels::cpu::dense_block
