#pragma once

#include <cstdint>
#include <string>

namespace palimpsest::train {

/// How a training in f16 chooses the factor by which it multiplies the loss (amp/grad_scaler.h).
struct LossScale {
  enum class Kind {
    kDynamic,   ///< the rule of amp::GradScaler
    kAuto,      ///< amp::ExponentHistogram::recommended_scale of the gradients, every kChooseEvery steps
    kConstant,  ///< `constant`
  };
  Kind kind = Kind::kDynamic;
  double constant = 0;

  /// Steps between two choices of an automatic scale. A step that overflows is followed by a new choice.
  static constexpr int64_t kChooseEvery = 100;
};

/// Reads "dynamic", "auto" or a number. Throws Error(kUsage), whose text begins with `where`, unless the
/// number is above 0 and finite in f32.
LossScale parse_loss_scale(const std::string& text, const std::string& where = "loss_scale");

}  // namespace palimpsest::train
