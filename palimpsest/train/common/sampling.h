#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace palimpsest::train {

/// The values that linear interpolation reads along one axis: output i is the sum over k of
/// weight[k][i] * x[index[k][i]].
struct Taps {
  at::Tensor index;   // (taps, outputs) i64
  at::Tensor weight;  // (taps, outputs), the sum over taps is 1

  /// Returns those of the outputs [begin, begin + count), as views.
  Taps narrow(int64_t begin, int64_t count) const;
};

/// Returns the taps for outputs at `positions` in (0, size), on an axis whose pixel j lies at j + 0.5.
/// `reach` >= 1: the distance at which a pixel no longer counts. 1 is interpolation between two neighbours; more
/// averages over 2 * reach pixels, for shrinking by that factor. Pixels beyond the ends count as nothing, which
/// for a reach of 1 repeats the last pixel. like: dtype and device of the weights. The host does not wait for a
/// device.
Taps make_taps(const std::vector<double>& positions, int64_t size, double reach, const at::Tensor& like);

/// Samples x at rows, which are its dimension `dim`, and columns, the dimension after it.
at::Tensor sample(const at::Tensor& x, int64_t dim, const Taps& rows, const Taps& columns);

}  // namespace palimpsest::train
