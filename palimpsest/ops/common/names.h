#pragma once

#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/activation.h"

#include <array>
#include <string_view>
#include <utility>

/// The names that Python and saved graphs use.
namespace palimpsest::ops {

/// libtorch's names, as in kernels/activation.h; any other raises c10::Error with the nearest known one.
Activation activation_from_name(std::string_view name);
std::string_view activation_name(Activation activation);

inline constexpr std::array<std::pair<kernels::Saved, std::string_view>, 6> kKeepNames{{
    {kernels::Saved::kOutput, "output"},
    {kernels::Saved::kOutputForm1, "output_form1"},
    {kernels::Saved::kPreActivation, "scaled"},
    {kernels::Saved::kNormalized, "normalized"},
    {kernels::Saved::kInput, "input"},
    {kernels::Saved::kOutputBit, "output_bit"},
}};

/// What the layer keeps for backward, by name; likewise.
kernels::Saved keep_from_name(std::string_view name);
std::string_view keep_name(kernels::Saved keep);

}  // namespace palimpsest::ops
