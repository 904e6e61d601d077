#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

using palimpsest::Activation;

/// "leaky_relu", "elu", "identity". Throws Error(kUsage) with the nearest name.
Activation parse_activation(std::string_view name);
std::string to_string(Activation activation);
std::vector<std::string> activation_names();

/// Throws Error(kUsage) unless `param` lets the activation be inverted: leaky ReLU's slope in (0, 1] (slope
/// 0, plain ReLU, loses the negative side), ELU's alpha above 0 and finite. The identity has no parameter.
void check_activation_param(Activation activation, double param);

/// Overwrites `y` with its activation by libtorch's own in-place operator, and returns it: leaky_relu_(y,
/// slope), elu_(y, alpha), or `y` untouched. Backward reads the result, so `y` costs no memory beside it.
at::Tensor activate_(at::Tensor y, Activation activation, double param);

}  // namespace palimpsest::nn
