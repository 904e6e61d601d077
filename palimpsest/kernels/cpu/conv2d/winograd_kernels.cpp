// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/conv2d/winograd_kernels.h"

#include "palimpsest/kernels/cpu/simd/vector.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::conv2d::TileRow;
using cpu::conv2d::WinogradKernels;

namespace {

using WinogradVector = Vector<float>;
constexpr int64_t kWinogradLanes = lanes<float, WinogradVector>();

template <bool kReLU>
WinogradVector pixel(const float* from) {
  const auto value = load<WinogradVector>(from);
  if (!kReLU) return value;
  return value <= WinogradVector{} ? WinogradVector{} : value;  // keeps NaN, as libtorch's ReLU does
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

template <bool kReLU, class Combine>
void input_row_of(const float* const first[4], const float* const second[4], int64_t channels,
                  const TileRow& row, const Combine& combine) {
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

void input_row(int64_t r, const float* const first[4], const float* const second[4], int64_t channels,
               bool relu, const TileRow& row) {
  const auto add = [](WinogradVector a, WinogradVector b) PALIMPSEST_INLINE_LAMBDA { return a + b; };
  const auto subtract = [](WinogradVector a, WinogradVector b) PALIMPSEST_INLINE_LAMBDA { return a - b; };
  if (r == 1)
    relu ? input_row_of<true>(first, second, channels, row, add)
         : input_row_of<false>(first, second, channels, row, add);
  else
    relu ? input_row_of<true>(first, second, channels, row, subtract)
         : input_row_of<false>(first, second, channels, row, subtract);
}

template <class Combine>
void gradient_row_of(const float* const dy[4], int64_t channels, const TileRow& row, const Combine& combine) {
  for_each_vector(channels, row, [&](int64_t c, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    const WinogradVector left = combine(load<WinogradVector>(dy[0] + c), load<WinogradVector>(dy[2] + c));
    const WinogradVector right = combine(load<WinogradVector>(dy[1] + c), load<WinogradVector>(dy[3] + c));
    store(row.to[0] + at, left);
    store(row.to[1] + at, left + right);
    store(row.to[2] + at, left - right);
    store(row.to[3] + at, -right);
  });
}

void gradient_row(int64_t r, const float* const dy[4], int64_t channels, const TileRow& row) {
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

void output(const float* m, int64_t step, int64_t channels, float* const y[4], const float* const* mask) {
  for_each_vector(channels, [&](int64_t c) PALIMPSEST_INLINE_LAMBDA {
    WinogradVector rows[2][4];
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) {
      const auto at = [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
        return load<WinogradVector>(m + (4 * i + j) * step + c);
      };
      const WinogradVector m1 = at(1), m2 = at(2);
      rows[0][j] = at(0) + (m1 + m2);
      rows[1][j] = (m1 - m2) - at(3);
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < 2; ++i) {
      const WinogradVector* const r = rows[i];
      const WinogradVector pair[2] = {r[0] + (r[1] + r[2]), (r[1] - r[2]) - r[3]};
#pragma GCC unroll 2
      for (int64_t j = 0; j < 2; ++j) {
        if (!y[2 * i + j]) continue;
        WinogradVector value = pair[j];
        if (mask)
          value = load<WinogradVector>(mask[2 * i + j] + c) <= WinogradVector{} ? WinogradVector{} : value;
        store(y[2 * i + j] + c, value);
      }
    }
  });
}

void weights(const float* w, int64_t distance, int64_t channels, bool rotate, float* to, int64_t step) {
  const float half = 0.5F;
  for_each_vector(channels, [&](int64_t c) PALIMPSEST_INLINE_LAMBDA {
    WinogradVector rows[4][3];
#pragma GCC unroll 3
    for (int64_t j = 0; j < 3; ++j) {
      const auto at = [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
        const int64_t k = 3 * i + j;
        return load<WinogradVector>(w + (rotate ? 8 - k : k) * distance + c);
      };
      const WinogradVector outer = (at(0) + at(2)) * half, inner = at(1) * half;
      rows[0][j] = at(0);
      rows[1][j] = outer + inner;
      rows[2][j] = outer - inner;
      rows[3][j] = at(2);
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < 4; ++i) {
      const WinogradVector outer = (rows[i][0] + rows[i][2]) * half, inner = rows[i][1] * half;
      float* const row = to + 4 * i * step + c;
      store(row, rows[i][0]);
      store(row + step, outer + inner);
      store(row + 2 * step, outer - inner);
      store(row + 3 * step, rows[i][2]);
    }
  });
}

void weight_gradient(const float* s, int64_t step, int64_t channels, float* dw, int64_t distance) {
  const float half = 0.5F;
  for_each_vector(channels, [&](int64_t c) PALIMPSEST_INLINE_LAMBDA {
    WinogradVector rows[3][4];
#pragma GCC unroll 4
    for (int64_t j = 0; j < 4; ++j) {
      const auto at = [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
        return load<WinogradVector>(s + (4 * i + j) * step + c);
      };
      const WinogradVector sum = (at(1) + at(2)) * half;
      rows[0][j] = at(0) + sum;
      rows[1][j] = (at(1) - at(2)) * half;
      rows[2][j] = sum + at(3);
    }
#pragma GCC unroll 3
    for (int64_t i = 0; i < 3; ++i) {
      const WinogradVector* const r = rows[i];
      const WinogradVector sum = (r[1] + r[2]) * half;
      float* const row = dw + 3 * i * distance + c;
      store(row, r[0] + sum);
      store(row + distance, (r[1] - r[2]) * half);
      store(row + 2 * distance, sum + r[3]);
    }
  });
}

}  // namespace

extern const WinogradKernels kWinograd;
const WinogradKernels kWinograd{input_row, gradient_row, output, weights, weight_gradient};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
