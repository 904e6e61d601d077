#pragma once

#include "palimpsest/train/records.h"

#include <string>

namespace palimpsest::train {

/// Draws the gradients of a step by binary exponent as an SVG element: the shares of weight and of activation
/// gradients in percent, a mark at 2^-24, below which f16 is zero, and a mark at the place to which the
/// recommended scale moves this limit.
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, figure 3.
std::string to_svg(const ExponentRecord& record);

}  // namespace palimpsest::train
