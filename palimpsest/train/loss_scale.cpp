#include "palimpsest/train/loss_scale.h"

#include "palimpsest/train/common/require.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace palimpsest::train {

LossScale parse_loss_scale(const std::string& text, const std::string& where) {
  if (text == "dynamic") return {LossScale::Kind::kDynamic};
  if (text == "auto") return {LossScale::Kind::kAuto};
  LossScale scale{LossScale::Kind::kConstant};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), scale.constant);
  const auto as_f32 = static_cast<float>(scale.constant);
  const bool is_number = failure == std::errc() && end == text.data() + text.size();
  require(is_number && std::isfinite(as_f32) && as_f32 > 0,
          fmt::format(
              "{} must be 'dynamic', 'auto' or a number above 0 that f32 holds (1e-45 to 3.4e38), got '{}'",
              where, text));
  return scale;
}

}  // namespace palimpsest::train
