#include "palimpsest/ops/invertibility/criterion.h"

#include "palimpsest/kernels/formulas/invertibility.h"
#include "palimpsest/ops/invertibility/host_vector.h"

namespace palimpsest::ops::invertibility {
namespace {

DType dtype_of(at::ScalarType storage) {
  switch (storage) {
    case at::kDouble:
      return DType::f64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

}  // namespace

std::vector<int64_t> non_invertible_channels(const Layer& layer, const Values& values) {
  const kernels::InvertibilityCriterion criterion(layer.activation, dtype_of(layer.storage));
  const HostVector gamma(values.weight, 1), beta(values.bias, 0), rms(values.residual_rms, 0),
      gamma_moved(values.weight_moved, 0), beta_moved(values.bias_moved, 0);
  std::vector<int64_t> result;
  for (int64_t c = 0; c < layer.channels; ++c)
    if (!criterion.is_invertible_within(gamma.at(c), gamma_moved.at(c), beta.at(c), beta_moved.at(c),
                                        rms.at(c)))
      result.push_back(c);
  return result;
}

}  // namespace palimpsest::ops::invertibility
