#include "palimpsest/cli/trained_model.h"

#include "palimpsest/cli/build.h"
#include "palimpsest/train/checkpoint.h"
#include "palimpsest/train/tensor_format.h"

namespace palimpsest::cli {

std::shared_ptr<nn::Model> load_trained_model(const Options& options) {
  auto model = make_model(options);
  train::TensorFormat::parse(options.train.dtype, options.train.channels_last).convert(*model);
  train::load_weights(options.run.checkpoint, *model);
  model->eval();
  return model;
}

}  // namespace palimpsest::cli
