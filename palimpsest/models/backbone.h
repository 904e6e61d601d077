#pragma once

#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/linear.h"
#include "palimpsest/nn/model.h"
#include "palimpsest/nn/norm_options.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace palimpsest::models {

/// The options that every backbone has beside its shape.
struct BackboneOptions {
  int64_t classes = 1000;  ///< 0: no classifier; forward() then returns features()
  /// Pixels of the image per feature: 32; or 16 or 8, for which the last stages are dilated. WideResNets take less
  /// than 32 in the form A2 only. DenseNets and the networks for images of 32 pixels ignore this option.
  int64_t output_stride = 32;
  nn::NormOptions norm = {};
  /// Only DenseNets read it. Default: nn::default_dense_strategy(norm).
  std::optional<nn::DenseStrategy> dense_strategy = std::nullopt;
  /// Only DenseNets read it. false: normalization and activation follow each convolution.
  bool pre_activation = true;
  /// Probability of dropout where the network has it. Default: the network's own. ResNets and ResNeXts of any
  /// kind ignore it.
  std::optional<double> dropout = std::nullopt;
  /// Only EfficientNets read it: the probability with which the last block would leave its branch out.
  std::optional<double> stochastic_depth = std::nullopt;
};

/// A classification network whose features can also serve another kind of head.
class Backbone : public nn::Model {
 public:
  /// Maps (N, 3, H, W) to activated features, (N, feature_channels(), h, w). h and w are H and W divided by
  /// the output stride and rounded; AlexNet and VGG have a fixed h and w.
  virtual at::Tensor features(const at::Tensor& images) = 0;
  int64_t feature_channels() const { return feature_channels_; }

  /// Returns logits (N, classes): the classifier reads the global average of the features. Without a
  /// classifier returns the features.
  at::Tensor forward(const at::Tensor& images) override;
  bool is_segmentation() const override { return false; }

 protected:
  /// Registers the classifier, a linear layer from `inputs` values, and returns it; nothing if `classes` is 0.
  /// Call it last: names come in the order of registration.
  nn::Linear register_classifier(int64_t feature_channels, int64_t classes, const std::string& name = "fc") {
    return register_classifier(feature_channels, feature_channels, classes, name);
  }
  nn::Linear register_classifier(int64_t feature_channels, int64_t inputs, int64_t classes,
                                 const std::string& name);

 private:
  int64_t feature_channels_ = 0;
};

}  // namespace palimpsest::models
