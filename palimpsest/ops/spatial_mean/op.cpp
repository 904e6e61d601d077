#include "palimpsest/ops/spatial_mean.h"

#include <ATen/ops/mean.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>
#include <utility>
#include <vector>

namespace palimpsest::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor mean_of(const at::Tensor& x) {
  std::vector<int64_t> spatial(static_cast<size_t>(x.dim() - 2));
  std::iota(spatial.begin(), spatial.end(), 2);
  return x.mean(spatial, /*keepdim=*/true);
}

class SpatialMeanFunction : public torch::autograd::Function<SpatialMeanFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->saved_data["sizes"] = x.sizes().vec();
    return mean_of(x);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    int64_t pixels = 1;
    for (size_t i = 2; i < sizes.size(); ++i) pixels *= sizes[i];
    return {(gradients[0] / static_cast<double>(pixels)).expand(sizes)};
  }
};

}  // namespace

at::Tensor spatial_mean(const at::Tensor& x) {
  TORCH_CHECK(x.dim() >= 3 && at::isFloatingType(x.scalar_type()),
              "[spatial_mean] x must be (N, C, spatial...) of a floating dtype, got shape ", x.sizes(),
              " and dtype ", x.scalar_type());
  return SpatialMeanFunction::apply(x);
}

}  // namespace palimpsest::ops
