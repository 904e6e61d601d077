#pragma once

#include "palimpsest/train/record.h"

#include <string>

namespace palimpsest::train {

/// The gradients of a step by binary exponent as an SVG element: shares of weight and of activation gradients
/// in percent, what f16 cannot hold marked at 2^-24, and where the recommended scale would move that to.
/// Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, figure 3.
std::string to_svg(const ExponentRecord& record);

}  // namespace palimpsest::train
