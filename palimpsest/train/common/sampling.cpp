#include "palimpsest/train/common/sampling.h"

#include "palimpsest/train/common/send.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace palimpsest::train {
namespace {

at::Tensor sample_axis(const at::Tensor& x, int64_t dim, const Taps& taps) {
  std::vector<int64_t> shape(x.dim(), 1);
  shape[dim] = -1;
  const auto weight = [&](int64_t k) { return taps.weight[k].view(shape); };
  at::Tensor sum = x.index_select(dim, taps.index[0]).mul_(weight(0));
  for (int64_t k = 1; k < taps.index.size(0); ++k)
    sum.addcmul_(x.index_select(dim, taps.index[k]), weight(k));
  return sum;
}

}  // namespace

Taps make_taps(const std::vector<double>& positions, int64_t size, double reach, const at::Tensor& like) {
  const auto outputs = static_cast<int64_t>(positions.size());
  const auto most = static_cast<int64_t>(std::ceil(2 * reach));  // pixels nearer than the reach
  const at::Tensor index = at::zeros({most, outputs}, at::kLong);
  const at::Tensor weight = at::zeros({most, outputs}, at::kDouble);
  auto* indices = index.mutable_data_ptr<int64_t>();
  auto* weights = weight.mutable_data_ptr<double>();
  int64_t used = 1;
  for (int64_t i = 0; i < outputs; ++i) {
    const double centre = positions[i] - 0.5;  // where pixel j lies at j
    const auto first = std::max<int64_t>(std::llround(std::floor(centre - reach)) + 1, 0);
    const auto end = std::min<int64_t>(std::llround(std::ceil(centre + reach)), size);
    // A tap without weight reads a pixel that counts, so that no other one can make the sum NaN.
    for (int64_t k = end - first; k < most; ++k) indices[k * outputs + i] = first;
    double sum = 0;
    for (int64_t j = first; j < end; ++j) {
      indices[(j - first) * outputs + i] = j;
      sum += weights[(j - first) * outputs + i] = 1 - std::abs(static_cast<double>(j) - centre) / reach;
    }
    for (int64_t j = first; j < end; ++j) weights[(j - first) * outputs + i] /= sum;
    used = std::max(used, end - first);
  }
  return {send(index.narrow(0, 0, used), like.device()),
          send(weight.narrow(0, 0, used).to(like.scalar_type()), like.device())};
}

Taps Taps::narrow(int64_t begin, int64_t count) const {
  return {index.narrow(1, begin, count), weight.narrow(1, begin, count)};
}

at::Tensor sample(const at::Tensor& x, int64_t dim, const Taps& rows, const Taps& columns) {
  return sample_axis(sample_axis(x, dim, rows), dim + 1, columns);
}

}  // namespace palimpsest::train
