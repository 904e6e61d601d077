#pragma once

#include "palimpsest/data/loader.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/record.h"
#include "palimpsest/train/tensor_format.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {

/// Puts a module and its children into eval mode, and back into the mode that each was in.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module);
  ~EvalMode();
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

/// Loss and metrics of `model`, in eval mode and without gradients, over one pass of `loader` (its epoch 0):
/// the model is as before afterwards. All images of a batch have one size; batches may differ. The mean loss
/// weighs every valid pixel (image) alike, so with "cross_entropy" it does not depend on how the images are
/// batched. Nothing when `stopped` became true on the way. Throws as `loss`, `MetricsAccumulator::add` and
/// the loader do, and Error(kMemory).
std::optional<EvaluationRecord> evaluate_unless(const std::function<bool()>& stopped, nn::Model& model,
                                                data::Loader& loader, const LossOptions& loss,
                                                const TensorFormat& format);

/// `loss` for the model's task: an image's label is never void, so 255 stays a class of a thousand.
LossOptions loss_for(const nn::Model& model, LossOptions loss);

/// "16 images of 3 x 512 x 512", for messages.
std::string describe(const at::Tensor& images);

}  // namespace palimpsest::train
