#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

using palimpsest::Activation;

/// libtorch's names: "leaky_relu", "elu", "identity", "sigmoid", "tanh", "softplus", "relu", "gelu",
/// "gelu_tanh", "silu", "hardswish". Throws Error(kUsage) with the nearest name.
Activation parse_activation(std::string_view name);
std::string to_string(Activation activation);
std::vector<std::string> activation_names();

/// Throws Error(kUsage) unless `param` lets the activation be inverted: leaky ReLU's slope in (0, 1] (slope
/// 0, plain ReLU, loses the negative side), ELU's alpha above 0 and finite. The others have no parameter.
void check_activation_param(Activation activation, double param);

/// The activation of `y` by libtorch's own operator, over `y` where backward reads the result, so that `y`
/// costs no memory beside it (leaky ReLU, ELU, sigmoid, tanh, ReLU; the identity returns `y`); the others
/// save `y` and give a fresh result.
at::Tensor activate_(at::Tensor y, Activation activation, double param);

/// The same, with `y` left as it is.
at::Tensor activate(const at::Tensor& y, Activation activation, double param);

}  // namespace palimpsest::nn
