#include "palimpsest/ops/common/names.h"
#include "palimpsest/ops/concat_abn_conv.h"

#include <torch/library.h>

#include <string_view>
#include <utility>
#include <vector>

/// Registers torch.ops.palimpsest.concat_abn_conv. It runs in eager mode only: it reads the tensors' memory.
namespace palimpsest::ops::concat_abn_conv_detail {
namespace {

at::Tensor concat_abn_conv_of(at::TensorList features, const OptionalTensor& weight,
                              const OptionalTensor& bias, const OptionalTensor& running_mean,
                              const OptionalTensor& running_var, const at::Tensor& conv_weight,
                              std::vector<int64_t> stride, std::vector<int64_t> padding,
                              std::vector<int64_t> dilation, int64_t groups, bool training, double momentum,
                              double eps, std::string_view activation, double activation_param, bool pool,
                              std::string_view group) {
  AbnOptions options;
  options.training = training;
  options.momentum = momentum;
  options.eps = eps;
  options.activation = activation_from_name(activation);
  options.activation_param = activation_param;
  options.group = group;
  return concat_abn_conv(features, NormalizationTensors{weight, bias, running_mean, running_var}, conv_weight,
                         {std::move(stride), std::move(padding), std::move(dilation), groups}, options, pool);
}

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  m.def(
      "concat_abn_conv(Tensor[] features, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
      "Tensor(b!)? running_var, Tensor conv_weight, int[] stride, int[] padding, int[] dilation, "
      "int groups=1, bool training=True, float momentum=0.1, float eps=1e-5, str activation=\"leaky_relu\", "
      "float activation_param=0.01, bool pool=False, str group=\"\") -> Tensor",
      &concat_abn_conv_of);
}

}  // namespace
}  // namespace palimpsest::ops::concat_abn_conv_detail
