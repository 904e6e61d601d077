#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/common/names.h"

#include <torch/library.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Registers torch.ops.palimpsest.abn_conv, abn_conv_ and activate_conv. They are composite, as abn is
/// (abn/schema.cpp).
namespace palimpsest::ops::abn_conv_detail {
namespace {

using Numbers = std::vector<int64_t>;

/// kConvolve: ops::abn_conv or ops::abn_conv_.
template <auto kConvolve>
at::Tensor abn_conv_of(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                       const OptionalTensor& running_mean, const OptionalTensor& running_var,
                       const at::Tensor& conv_weight, const OptionalTensor& conv_bias, Numbers stride,
                       Numbers padding, Numbers dilation, int64_t groups, bool training, double momentum,
                       double eps, std::string_view activation, double activation_param,
                       std::optional<std::string_view> saved, std::string_view group) {
  return kConvolve(
      x, {weight, bias, running_mean, running_var}, conv_weight, conv_bias,
      {std::move(stride), std::move(padding), std::move(dilation), groups},
      {training, momentum, eps, activation_from_name(activation), activation_param,
       saved_from_arguments("abn_conv", saved, std::nullopt), /*relu_residual=*/false, std::string(group)});
}

at::Tensor activate_conv_of(const at::Tensor& y, const at::Tensor& conv_weight,
                            const OptionalTensor& conv_bias, Numbers stride, Numbers padding,
                            Numbers dilation, int64_t groups, std::string_view activation,
                            double activation_param) {
  return activate_conv(y, conv_weight, conv_bias,
                       {std::move(stride), std::move(padding), std::move(dilation), groups},
                       activation_from_name(activation), activation_param);
}

TORCH_LIBRARY_FRAGMENT(palimpsest, m) {
  const std::string convolution =
      "Tensor conv_weight, Tensor? conv_bias, int[] stride, int[] padding, int[] dilation, int groups=1, ";
  const std::string layer =
      "bool training=True, float momentum=0.1, float eps=1e-5, str activation=\"leaky_relu\", "
      "float activation_param=0.01, str? saved=None, str group=\"\") -> Tensor";
  m.def(("abn_conv(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, "
         "Tensor(b!)? running_var, " +
         convolution + layer)
            .c_str(),
        &abn_conv_of<&abn_conv>);
  m.def(("abn_conv_(Tensor(a!) x, Tensor? weight, Tensor? bias, Tensor(b!)? running_mean, "
         "Tensor(c!)? running_var, " +
         convolution + layer)
            .c_str(),
        &abn_conv_of<&abn_conv_>);
  m.def(("activate_conv(Tensor y, " + convolution +
         "str activation=\"relu\", float activation_param=0.01) -> Tensor")
            .c_str(),
        &activate_conv_of);
}

}  // namespace
}  // namespace palimpsest::ops::abn_conv_detail
