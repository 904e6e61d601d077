#include "palimpsest/models/backbone.h"

namespace palimpsest::models {

at::Tensor Backbone::forward(const at::Tensor& images) {
  auto activated = features(images);
  if (!has_classifier()) return activated;
  // The mean saves nothing for backward but sizes, adaptive_avg_pool2d its input.
  return classify(activated.mean({2, 3}));
}

nn::Linear Backbone::register_classifier(int64_t feature_channels, int64_t inputs, int64_t classes,
                                         const std::string& name) {
  feature_channels_ = feature_channels;
  declare_classifier(name, inputs);
  if (classes == 0) return nullptr;
  nn::Linear classifier(inputs, classes);
  replace_classifier(classifier);
  return classifier;
}

}  // namespace palimpsest::models
