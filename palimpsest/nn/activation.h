#pragma once

#include "palimpsest/kernels/activation.h"

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::nn {

using palimpsest::Activation;

/// "leaky_relu", "elu", "identity". Throws Error(kUsage) with the nearest name.
Activation parse_activation(std::string_view name);
std::string to_string(Activation activation);
std::vector<std::string> activation_names();

}  // namespace palimpsest::nn
