// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/conv2d/winograd_kernels.h"

#include "palimpsest/kernels/cpu/simd/storage.h"
#include "palimpsest/kernels/cpu/simd/vector.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::conv2d::TilePixels;
using cpu::conv2d::TileRow;
using cpu::conv2d::WinogradKernels;
using cpu::conv2d::WinogradTransforms;

namespace {

using WinogradVector = Vector<float>;
constexpr int64_t kWinogradLanes = lanes<float, WinogradVector>();

template <bool kReLU, class S>
WinogradVector pixel(const S* from) {
  const auto value = load_as<WinogradVector>(from);
  return kReLU ? relu(value) : value;
}

/// Calls visit(c) for vectors that cover the channels. The last one ends with them, and may overlap the one
/// before it: both write the same values.
template <class Visit>
void for_each_vector(int64_t channels, const Visit& visit) {
  int64_t c = 0;
  for (; c + kWinogradLanes <= channels; c += kWinogradLanes) visit(c);
  if (c < channels) visit(channels - kWinogradLanes);
}

/// The same in panels: visit(c, offset in a row).
template <class Visit>
void for_each_vector(int64_t channels, const TileRow& row, const Visit& visit) {
  for (int64_t first = 0, panel = 0; first < channels; first += row.width, panel += row.distance) {
    const int64_t rest = channels - first;
    for_each_vector(rest < row.width ? rest : row.width,
                    [&](int64_t c) PALIMPSEST_INLINE_LAMBDA { visit(first + c, panel + c); });
  }
}

template <bool kReLU, class S, class Combine>
void input_row_of(const S* const first[4], const S* const second[4], int64_t channels, const TileRow& row,
                  const Combine& combine) {
  for_each_vector(channels, row, [&](int64_t c, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    WinogradVector d[4];
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) d[j] = combine(pixel<kReLU>(first[j] + c), pixel<kReLU>(second[j] + c));
    store(row.to[0] + at, d[0] - d[2]);
    store(row.to[1] + at, d[1] + d[2]);
    store(row.to[2] + at, d[2] - d[1]);
    store(row.to[3] + at, d[1] - d[3]);
  });
}

template <class S>
void input_row(int64_t r, const S* const first[4], const S* const second[4], int64_t channels, bool relu,
               const TileRow& row) {
  const auto add = [](WinogradVector a, WinogradVector b) PALIMPSEST_INLINE_LAMBDA { return a + b; };
  const auto subtract = [](WinogradVector a, WinogradVector b) PALIMPSEST_INLINE_LAMBDA { return a - b; };
  if (r == 1)
    relu ? input_row_of<true>(first, second, channels, row, add)
         : input_row_of<false>(first, second, channels, row, add);
  else
    relu ? input_row_of<true>(first, second, channels, row, subtract)
         : input_row_of<false>(first, second, channels, row, subtract);
}

template <class S, class Combine>
void gradient_row_of(const S* const dy[4], int64_t channels, const TileRow& row, const Combine& combine) {
  for_each_vector(channels, row, [&](int64_t c, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    const WinogradVector left =
        combine(load_as<WinogradVector>(dy[0] + c), load_as<WinogradVector>(dy[2] + c));
    const WinogradVector right =
        combine(load_as<WinogradVector>(dy[1] + c), load_as<WinogradVector>(dy[3] + c));
    store(row.to[0] + at, left);
    store(row.to[1] + at, left + right);
    store(row.to[2] + at, left - right);
    store(row.to[3] + at, -right);
  });
}

template <class S>
void gradient_row(int64_t r, const S* const dy[4], int64_t channels, const TileRow& row) {
  using W = WinogradVector;
  switch (r) {
    case 0:
      return gradient_row_of(dy, channels, row, [](W top, W) PALIMPSEST_INLINE_LAMBDA { return top; });
    case 1:
      return gradient_row_of(dy, channels, row,
                             [](W top, W bottom) PALIMPSEST_INLINE_LAMBDA { return top + bottom; });
    case 2:
      return gradient_row_of(dy, channels, row,
                             [](W top, W bottom) PALIMPSEST_INLINE_LAMBDA { return top - bottom; });
    default:
      return gradient_row_of(dy, channels, row, [](W, W bottom) PALIMPSEST_INLINE_LAMBDA { return -bottom; });
  }
}

// The transforms in one dimension (winograd_kernels.h).

/// to = A^T m.
PALIMPSEST_HOST_DEVICE void apply_output(const WinogradVector m[4], WinogradVector to[2]) {
  to[0] = m[0] + (m[1] + m[2]);
  to[1] = (m[1] - m[2]) - m[3];
}
/// to = G g.
PALIMPSEST_HOST_DEVICE void apply_weights(const WinogradVector g[3], WinogradVector to[4]) {
  const WinogradVector outer = (g[0] + g[2]) * 0.5F, inner = g[1] * 0.5F;
  to[0] = g[0];
  to[1] = outer + inner;
  to[2] = outer - inner;
  to[3] = g[2];
}
/// to = G^T s.
PALIMPSEST_HOST_DEVICE void apply_weight_gradient(const WinogradVector s[4], WinogradVector to[3]) {
  const WinogradVector sum = (s[1] + s[2]) * 0.5F;
  to[0] = s[0] + sum;
  to[1] = (s[1] - s[2]) * 0.5F;
  to[2] = sum + s[3];
}

/// Applies a transform to the columns of a square of `kFrom` x `kFrom` vectors, then to the rows. read(i, j)
/// returns an element, write(i, j, value) takes one of the result.
template <int64_t kFrom, int64_t kTo, auto kTransform, class Read, class Write>
PALIMPSEST_HOST_DEVICE void apply_twice(const Read& read, const Write& write) {
  WinogradVector rows[kTo][kFrom];
#pragma GCC unroll 4
  for (int64_t j = 0; j < kFrom; ++j) {
    WinogradVector column[kFrom], to[kTo];
#pragma GCC unroll 4
    for (int64_t i = 0; i < kFrom; ++i) column[i] = read(i, j);
    kTransform(column, to);
#pragma GCC unroll 4
    for (int64_t i = 0; i < kTo; ++i) rows[i][j] = to[i];
  }
#pragma GCC unroll 4
  for (int64_t i = 0; i < kTo; ++i) {
    WinogradVector to[kTo];
    kTransform(rows[i], to);
#pragma GCC unroll 4
    for (int64_t j = 0; j < kTo; ++j) write(i, j, to[j]);
  }
}

template <bool kMask, class S>
void output_of(int64_t tiles, const float* m, int64_t tile_distance, int64_t step, int64_t channels,
               const TilePixels* pixels, S* y, const S* mask) {
  for (int64_t t = 0; t < tiles; ++t, m += tile_distance) {
    const int64_t* const offsets = pixels[t].offsets;
    for_each_vector(channels, [&](int64_t c) PALIMPSEST_INLINE_LAMBDA {
      apply_twice<4, 2, apply_output>(
          [&](int64_t i, int64_t j)
              PALIMPSEST_INLINE_LAMBDA { return load<WinogradVector>(m + (4 * i + j) * step + c); },
          [&](int64_t i, int64_t j, WinogradVector value) PALIMPSEST_INLINE_LAMBDA {
            const int64_t offset = offsets[2 * i + j];
            if (offset < 0) return;
            if (kMask)
              value =
                  load_as<WinogradVector>(mask + offset + c) <= WinogradVector{} ? WinogradVector{} : value;
            store_as(y + offset + c, value, false);
          });
    });
  }
}

template <class S>
void output(int64_t tiles, const float* m, int64_t tile_distance, int64_t step, int64_t channels,
            const TilePixels* pixels, S* y, const S* mask) {
  mask ? output_of<true>(tiles, m, tile_distance, step, channels, pixels, y, mask)
       : output_of<false>(tiles, m, tile_distance, step, channels, pixels, y, mask);
}

void weights(const float* w, int64_t distance, int64_t channels, bool rotate, float* to, int64_t step) {
  for_each_vector(channels, [&](int64_t c) PALIMPSEST_INLINE_LAMBDA {
    apply_twice<3, 4, apply_weights>(
        [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
          const int64_t k = 3 * i + j;
          return load<WinogradVector>(w + (rotate ? 8 - k : k) * distance + c);
        },
        [&](int64_t i, int64_t j, WinogradVector value)
            PALIMPSEST_INLINE_LAMBDA { store(to + (4 * i + j) * step + c, value); });
  });
}

void weight_gradient(const float* s, int64_t step, int64_t channels, float* dw, int64_t distance) {
  for_each_vector(channels, [&](int64_t c) PALIMPSEST_INLINE_LAMBDA {
    apply_twice<4, 3, apply_weight_gradient>(
        [&](int64_t i, int64_t j)
            PALIMPSEST_INLINE_LAMBDA { return load<WinogradVector>(s + (4 * i + j) * step + c); },
        [&](int64_t i, int64_t j, WinogradVector value)
            PALIMPSEST_INLINE_LAMBDA { store(dw + (3 * i + j) * distance + c, value); });
  });
}

template <class S>
constexpr WinogradTransforms<S> kTransforms{input_row<S>, gradient_row<S>, output<S>};

}  // namespace

extern const WinogradKernels kWinograd;
const WinogradKernels kWinograd{kTransforms<float>, kTransforms<Float16>, kTransforms<BFloat16>, weights,
                                weight_gradient};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
