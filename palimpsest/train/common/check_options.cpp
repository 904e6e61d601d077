#include "palimpsest/train/common/check_options.h"

#include "palimpsest/train/best.h"
#include "palimpsest/train/common/require.h"
#include "palimpsest/train/ema.h"
#include "palimpsest/train/evaluate.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

namespace palimpsest::train {
namespace {

void check_evaluations(const TrainerOptions& options, const BatchSource* validation) {
  check_best(options.keep_best, options.patience);
  require(options.keep_best == "none" || (validation != nullptr && options.evaluate_every > 0),
          fmt::format("keep_best = {} needs evaluations: give a validation set and evaluate_every > 0",
                      options.keep_best));
}

}  // namespace

distributed::Group* group_of(const TrainerOptions& options) {
  return options.group && options.group->size() > 1 ? options.group : nullptr;
}

void check_options(const TrainerOptions& options, const BatchSource& batches, const BatchSource* validation) {
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    require(value >= least, fmt::format("{} must be at least {}, got {}", name, least, value));
  };
  at_least("epochs", options.epochs, 1);
  at_least("max_steps", options.max_steps, 0);
  at_least("log_every", options.log_every, 1);
  at_least("checkpoint_every", options.checkpoint_every, 0);
  at_least("evaluate_every", options.evaluate_every, 0);
  at_least("histogram_every", options.histogram_every, 0);
  at_least("accumulate", options.accumulate, 1);
  check_loss(options.loss);
  check_optimizer(options.optimizer);
  check_ema_decay(options.ema_decay);
  check_evaluations(options, validation);
  const distributed::Group* group = group_of(options);
  const int64_t images = batches.batch_size() / (group ? group->size() : 1);
  require(options.accumulate == 1 || options.accumulate <= images,
          fmt::format("accumulate must be at most the number of images per batch and process ({}), got {}",
                      images, options.accumulate));
  require(batches.batches() > 0, fmt::format("an epoch needs at least one batch, got {}", batches.batches()));
  int64_t steps = 0;
  require(!__builtin_mul_overflow(options.epochs, batches.batches(), &steps),
          fmt::format("epochs must be at most {} with {} batches per epoch, got {}",
                      std::numeric_limits<int64_t>::max() / batches.batches(), batches.batches(),
                      options.epochs));
  check_schedule(options.schedule, steps, batches.batches());
  require(options.histogram_every == 0 || options.dtype != "f64",
          fmt::format(
              "histogram_every must be 0 with dtype f64, got {}: the histograms are those of f32 and 16-bit "
              "gradients",
              options.histogram_every));
  require(!options.resume || !options.output.empty(),
          "resume needs the output folder of the run to continue, got none");
  check_share(batches, group_of(options), "the training batches");
}

}  // namespace palimpsest::train
