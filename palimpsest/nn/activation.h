#pragma once

#include "palimpsest/kernels/activation.h"

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

using palimpsest::Activation;

/// Returns the activation of that name in kernels::kActivations, e.g. "leaky_relu". Throws Error(kUsage) with
/// the nearest name for any other.
Activation parse_activation(std::string_view name);
std::string to_string(Activation activation);
std::vector<std::string> activation_names();

/// Throws Error(kUsage) unless the layer takes the activation with `param`: leaky ReLU's slope in [0, 1] (0
/// is ReLU), ELU's alpha finite and 0 or above. Other activations ignore `param`.
void check_activation_param(Activation activation, double param);

/// Returns act(y), computed by libtorch's own operator. Leaky ReLU, ELU, sigmoid, tanh and ReLU, whose
/// backward reads the result, write over `y`. The identity returns `y`. The other activations save `y` and
/// return a new tensor.
at::Tensor activate_(at::Tensor y, Activation activation, double param);

/// Returns act(y) as a new tensor; the identity returns `y` itself.
at::Tensor activate(const at::Tensor& y, Activation activation, double param);

}  // namespace palimpsest::nn
