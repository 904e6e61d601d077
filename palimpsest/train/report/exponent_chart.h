#pragma once

#include "palimpsest/train/records.h"

#include <string>

namespace palimpsest::train {

/// Draws the gradients of a step by binary exponent as an SVG element: the shares of weight and of activation
/// gradients in percent, a mark at 2^-24, below which f16 holds nothing, and a mark where the recommended
/// scale moves that limit.
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, figure 3.
std::string to_svg(const ExponentRecord& record);

}  // namespace palimpsest::train
