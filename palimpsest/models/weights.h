#pragma once

#include "palimpsest/nn/model.h"
#include "palimpsest/nn/state_dict.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Weights of the networks of models::make, for which nn::load_state_dict is not enough: prefixes of wrappers,
// classifiers, backbones, and files of the inplace_abn package.
namespace palimpsest::models {

/// The meaning of the weight (gamma) of a batch normalization in a file.
enum class WeightFormat {
  kAuto,         ///< weight_format() chooses one of the two formats below
  kTorchvision,  ///< gamma = weight, of any sign: files of torchvision, of ours and of most programs
  kInplaceAbn,   ///< gamma = |weight| + eps: checkpoints of networks with the inplace_abn package's layers
};

/// Returns "auto", "torchvision" and "inplace_abn".
std::vector<std::string> weight_format_names();
/// Returns the format with this name, never kAuto. "auto" chooses inplace_abn if only that package has the
/// network (resnext..._preact and wide_resnet..., alone or in DeepLab, and densenet264_deep_stem) and the file counts
/// no batches: the package's layers have no num_batches_tracked, libtorch's and ours do. Otherwise it chooses
/// torchvision. Throws Error(kUsage) with the nearest name.
WeightFormat weight_format(std::string_view name, const std::string& model, const nn::StateDict& tensors);
std::string to_string(WeightFormat format);

/// Removes the prefixes that wrappers add to keys: "module." (DataParallel) and "_orig_mod." (torch.compile).
/// Removes also the entries of our training checkpoints that are no part of the network ("palimpsest...").
/// Gives the keys of torchvision's published DenseNet files their present form: "denselayer1.norm.1.weight"
/// becomes "denselayer1.norm1.weight". Translates the names of the In-Place ABN paper's release
/// (common/release_names.h): "classifier.fc.weight" becomes "fc.weight". Removes the auxiliary classifiers of
/// torchvision's GoogLeNet and Inception v3, which its published files have. Returns the number of keys that
/// changed. Throws Error(kCheckpoint) if two keys become one.
int64_t unwrap(nn::StateDict& tensors);

/// Returns the rows of the classifier (`fc.weight`, `cls.weight`, `classifier.weight`, or the last of
/// `classifier.0.weight`, `classifier.1.weight`, ...), or nothing if there is no classifier, or one without
/// elements.
std::optional<int64_t> class_count(const nn::StateDict& tensors);

/// Returns the name of a model of the registry that the tensors fit, for any number of classes; "" if there
/// is none. It builds the models one after another, so use it for error messages only.
std::string fitting_model(const nn::StateDict& tensors);

/// The tensors of a file as a model stores them.
struct PlainWeights {
  nn::StateDict tensors;
  int64_t rescaled = 0;  ///< normalizations whose weight was changed
  int64_t counters = 0;  ///< num_batches_tracked that were added
};
/// Converts `tensors`, which must fit `model`, to the model's order and to f32 (f64 stays f64). If the format
/// is kInplaceAbn, a normalization's weight becomes |weight| + eps. A missing num_batches_tracked becomes 0.
PlainWeights plain_weights(const nn::StateDict& tensors, const torch::nn::Module& model, WeightFormat format);

/// The part of a network that start_from() loaded.
enum class Start { kAll, kAllButClassifier, kBody };

/// Throws as start_from() does if the tensors do not fit. Reads no values, so the tensors may be those of a
/// header.
void check_start(const nn::Model& model, nn::StateDict tensors, bool reset_classifier,
                 const std::string& source);

/// Loads the weights from which a training starts. The tensors of a classification network fill the body of a
/// segmentation network, whose head stays as it is. With `reset_classifier` the classifier
/// (nn::Model::classifier_name) stays as it is, so the number of classes may differ. If any other tensor does not fit,
/// throws Error(kCheckpoint) that names `source` and the keys, and leaves the model unchanged.
Start start_from(nn::Model& model, nn::StateDict tensors, bool reset_classifier, const std::string& source);

}  // namespace palimpsest::models
