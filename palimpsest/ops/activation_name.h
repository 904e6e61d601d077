#pragma once

#include "palimpsest/kernels/activation.h"

#include <string_view>

namespace palimpsest::ops {

/// "leaky_relu", "elu" or "identity"; any other name raises c10::Error with the nearest known one.
Activation activation_from_name(std::string_view name);
std::string_view activation_name(Activation activation);

}  // namespace palimpsest::ops
