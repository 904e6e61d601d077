#pragma once

#include "palimpsest/nn/misfit.h"
#include "palimpsest/nn/model.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest::models {

/// A state dict as a file holds it: keys with their tensors, in any order, of any floating dtype.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// What the weight (gamma) of a batch normalization means in a file.
enum class WeightFormat {
  kTorchvision,  ///< itself, of any sign: torchvision's files, ours, and everybody's
  kInplaceAbn,   ///< |weight| + eps: checkpoints of networks with the inplace_abn package's InPlaceABN layers
};

/// "auto", "torchvision", "inplace_abn".
std::vector<std::string> weight_format_names();
/// `name` as a format. "auto" takes inplace_abn for the networks that only that package had
/// (resnext..._preact, alone or under DeepLab) when the file counts no batches, as its layers do not:
/// num_batches_tracked is in every file of libtorch's layers and of ours. Throws Error(kUsage) with the
/// nearest name.
WeightFormat weight_format(std::string_view name, const std::string& model, const NamedTensors& tensors);
std::string to_string(WeightFormat format);

/// Removes what wrappers put in front of keys, "module." (DataParallel) and "_orig_mod." (torch.compile), and
/// what of a training checkpoint of ours is no part of the network ("palimpsest."). Returns how many keys
/// changed.
int64_t unwrap(NamedTensors& tensors);

/// Rows of the classifier, `fc.weight`, `classifier.weight` or `cls.weight`; nothing when there is none.
std::optional<int64_t> class_count(const NamedTensors& tensors);

/// How a file's keys differ from a model's; each list sorted as the model (unexpected: by name).
/// num_batches_tracked may be missing or left over: it says nothing about the function.
nn::Misfit compare(const NamedTensors& tensors, const torch::nn::Module& model);

/// The name of a model of the registry that the tensors fit, whatever its number of classes; "" if none
/// does. Builds the models one after another: for messages, not for every run.
std::string fitting_model(const NamedTensors& tensors);

/// The tensors as `model` (which they fit) stores them: its order, f32 (f64 stays), weights of normalizations
/// as plain ones (weight <- |weight| + eps for kInplaceAbn), a counter of 0 where there is none.
struct PlainWeights {
  NamedTensors tensors;
  int64_t rescaled = 0;  ///< normalizations whose weight was changed
  int64_t counters = 0;  ///< num_batches_tracked that were added
};
PlainWeights plain_weights(const NamedTensors& tensors, const torch::nn::Module& model, WeightFormat format);

/// What a training took over from a file.
enum class Start { kAll, kAllButClassifier, kBody };

/// Loads the weights that a training starts from. A file of a classification network fills the body of a
/// segmentation network, whose head stays as it is; with `reset_classifier` the classifier (`fc`, `cls`)
/// stays as it is, so that the number of classes may differ. Throws Error(kCheckpoint) naming `source` and
/// the keys when the rest does not fit; then nothing is changed.
Start start_from(nn::Model& model, NamedTensors tensors, bool reset_classifier, const std::string& source);

}  // namespace palimpsest::models
