#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/activation.h"

#include <optional>
#include <string_view>

/// The names that Python and saved graphs use, for enums of the kernels. An unknown name raises c10::Error
/// with the nearest known name.
namespace palimpsest::ops {

/// libtorch's names of activations ("leaky_relu").
Activation activation_from_name(std::string_view name);
std::string_view activation_name(Activation activation);

/// "output", "output_form1", "pre_activation" (an older name: "scaled"), "normalized", "input", "output_bit".
kernels::Saved saved_from_name(std::string_view name);
std::string_view saved_name(kernels::Saved saved);

/// The value of the arguments `saved` (default "output") and `keep`, the name before "saved"; c10::Error if
/// both are given.
kernels::Saved saved_from_arguments(const char* op, std::string_view saved,
                                    const std::optional<std::string_view>& keep);

}  // namespace palimpsest::ops
