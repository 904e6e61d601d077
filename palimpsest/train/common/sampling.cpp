#include "palimpsest/train/common/sampling.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace palimpsest::train {
namespace {

at::Tensor sample_axis(const at::Tensor& x, int64_t dim, const Taps& taps) {
  std::vector<int64_t> shape(x.dim(), 1);
  shape[dim] = -1;
  const auto weight = [&](std::size_t k) { return taps.weight[k].view(shape); };
  at::Tensor sum = x.index_select(dim, taps.index[0]).mul_(weight(0));
  for (std::size_t k = 1; k < taps.index.size(); ++k)
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
    double sum = 0;
    for (int64_t j = first; j < end; ++j) {
      indices[(j - first) * outputs + i] = j;
      sum += weights[(j - first) * outputs + i] = 1 - std::abs(static_cast<double>(j) - centre) / reach;
    }
    for (int64_t j = first; j < end; ++j) weights[(j - first) * outputs + i] /= sum;
    used = std::max(used, end - first);
  }
  Taps result;
  for (int64_t k = 0; k < used; ++k) {
    result.index.push_back(index[k].to(like.device()));
    result.weight.push_back(weight[k].to(like.options()));
  }
  return result;
}

at::Tensor sample(const at::Tensor& x, int64_t dim, const Taps& rows, const Taps& columns) {
  return sample_axis(sample_axis(x, dim, rows), dim + 1, columns);
}

}  // namespace palimpsest::train
