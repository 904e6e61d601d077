#include "palimpsest/cli/trained_model.h"

#include "palimpsest/cli/build.h"
#include "palimpsest/models/fold.h"
#include "palimpsest/train/checkpoint.h"

namespace palimpsest::cli {

std::shared_ptr<nn::Model> load_trained_model(const Options& options) {
  auto model = make_model(options);
  make_format(options).convert(*model);
  model->eval();
  if (train::read_checkpoint_metadata(options.run.checkpoint).contains("folded"))
    model = models::fold(std::move(model));
  train::load_weights(options.run.checkpoint, *model);
  return model;
}

}  // namespace palimpsest::cli
