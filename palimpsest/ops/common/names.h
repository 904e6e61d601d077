#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/activation.h"

#include <optional>
#include <string_view>

/// The names of the kernels' enums in Python and in saved graphs. An unknown name raises c10::Error with the
/// nearest known name.
namespace palimpsest::ops {

/// libtorch's names of activations ("leaky_relu").
Activation activation_from_name(std::string_view name);
std::string_view activation_name(Activation activation);

/// "output", "output_form1", "pre_activation" (an older name: "scaled"), "normalized", "input", "output_bit".
kernels::Saved saved_from_name(std::string_view name);
std::string_view saved_name(kernels::Saved saved);

/// Returns the value of the argument `saved`, or of `keep`, its older name; "output" if neither is given.
/// Raises c10::Error if both are given.
kernels::Saved saved_from_arguments(const char* op, const std::optional<std::string_view>& saved,
                                    const std::optional<std::string_view>& keep);

}  // namespace palimpsest::ops
