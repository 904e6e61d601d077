#include "palimpsest/train/common/divergence.h"

#include "palimpsest/train/step.h"

#include <fmt/format.h>

#include <cmath>

namespace palimpsest::train {

Error divergence(const StepRecord& record, const std::string& kept) {
  return {
      ErrorKind::kDiverged,
      fmt::format("diverged: the loss became {} in step {} (epoch {}, lr {:.3g}){}; try a lower lr or a "
                  "longer warm-up",
                  std::isnan(record.loss) ? "NaN" : "infinite", record.step, record.epoch, record.lr, kept)};
}

Error overflow(const TrainerOptions& options, const StepRecord& record, const std::string& kept) {
  return {ErrorKind::kDiverged,
          fmt::format("diverged: in {} no step of the last {} had finite gradients, up to step {} (loss {}, "
                      "loss scale {}){}; try precision bf16, {}",
                      options.precision, Step::kHopeless, record.step, record.loss, record.loss_scale, kept,
                      options.loss_scale == "dynamic" ? "or a lower lr" : "or a smaller loss scale")};
}

}  // namespace palimpsest::train
