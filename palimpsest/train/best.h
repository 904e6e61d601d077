#pragma once

#include "palimpsest/train/records.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::train {

/// The name of the best checkpoint in the output folder of a training.
inline constexpr const char* kBestFile = "best.safetensors";

/// The best evaluation of a run so far. A checkpoint holds it.
struct BestState {
  std::optional<double> value;  ///< nothing: no evaluation yet that has a value
  int64_t step = 0;             ///< of that evaluation
  int64_t evaluations_since = 0;
};

/// Finds the best evaluation of a run, and when to stop because none is better any more. The criteria:
///   metric  mean IoU (segmentation) or top-1 accuracy (classification); the larger the better
///   loss    of the evaluation; the smaller the better
/// An equal value is no better one. A value that is not finite is never the best.
class Best {
 public:
  /// `patience`: evaluations without a better one after which to stop; 0: never. Throws as check_best does.
  Best(const std::string& criterion, int64_t patience);

  /// Takes the next evaluation. Returns whether it is the best so far.
  bool add(const EvaluationRecord& record);
  bool is_exhausted() const { return patience_ > 0 && state_.evaluations_since >= patience_; }

  const BestState& state() const { return state_; }
  void resume(const BestState& state) { state_ = state; }
  /// Returns "no better loss than 0.25 of step 30 in 3 evaluations".
  std::string text() const;

 private:
  std::string criterion_;
  int64_t patience_;
  BestState state_;
};

/// Returns "none", "metric" and "loss".
std::vector<std::string> best_names();
/// Throws Error(kUsage) for another criterion (with the nearest name), a patience below 0, and a patience
/// without a criterion.
void check_best(const std::string& criterion, int64_t patience);

}  // namespace palimpsest::train
