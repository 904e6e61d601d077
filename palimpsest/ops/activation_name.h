#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/activation.h"

#include <array>
#include <string_view>
#include <utility>

/// The names that Python and saved graphs use.
namespace palimpsest::ops {

/// libtorch's names, as in kernels/activation_name.h; any other raises c10::Error with the nearest known one.
Activation activation_from_name(std::string_view name);
std::string_view activation_name(Activation activation);

inline constexpr std::array<std::pair<kernels::Kept, std::string_view>, 6> kKeepNames{{
    {kernels::Kept::kOutput, "output"},
    {kernels::Kept::kOutputForm1, "output_form1"},
    {kernels::Kept::kScaled, "scaled"},
    {kernels::Kept::kNormalized, "normalized"},
    {kernels::Kept::kInput, "input"},
    {kernels::Kept::kOutputBit, "output_bit"},
}};

/// What the layer keeps for backward, by name; likewise.
kernels::Kept keep_from_name(std::string_view name);
std::string_view keep_name(kernels::Kept keep);

}  // namespace palimpsest::ops
