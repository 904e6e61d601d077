#include "palimpsest/ops/feature_slots.h"

#include "palimpsest/ops/common/layout.h"

#include <ATen/ops/empty_strided.h>
#include <torch/csrc/autograd/custom_function.h>

namespace palimpsest::ops {
namespace feature_slots_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Copies a feature into its slot and returns the slot, which stands for the feature from then on.
class PutFeatureFunction : public torch::autograd::Function<PutFeatureFunction> {
 public:
  static at::Tensor forward(AutogradContext*, const at::Tensor& feature, const at::Tensor* slot) {
    slot->copy_(feature);
    return *slot;
  }
  static variable_list backward(AutogradContext*, variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

class AllFeaturesFunction : public torch::autograd::Function<AllFeaturesFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList features, const at::Tensor* buffer) {
    std::vector<int64_t> channels;
    for (const auto& f : features) channels.push_back(f.size(1));
    ctx->saved_data["channels"] = channels;
    // Only its version is checked, so hooks (save_on_cpu) get no values to copy.
    ctx->save_for_backward({buffer->detach().narrow(0, 0, 0)});
    return *buffer;
  }
  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    ctx->get_saved_variables();
    variable_list result;
    int64_t at = 0;
    for (const int64_t channels : ctx->saved_data["channels"].toIntVector()) {
      result.push_back(gradients[0].narrow(1, at, channels));
      at += channels;
    }
    result.emplace_back();
    return result;
  }
};

}  // namespace
}  // namespace feature_slots_detail

FeatureSlots::FeatureSlots(const at::Tensor& x, int64_t channels) {
  auto sizes = x.sizes().vec();
  sizes[1] = channels;
  const Layout layout = preferred_layout(x.sizes(), x.strides());
  buffer_ = at::empty_strided(sizes, contiguous_strides(sizes, layout), x.options());
  put(x);
}

void FeatureSlots::put(const at::Tensor& feature) {
  TORCH_CHECK(feature.dim() == buffer_.dim() && filled_ + feature.size(1) <= buffer_.size(1) &&
                  feature.scalar_type() == buffer_.scalar_type(),
              "[feature_slots] a feature must fit behind the ", filled_, " channels of a buffer of shape ",
              buffer_.sizes(), " and type ", buffer_.scalar_type(), ", got shape ", feature.sizes(), " of ",
              feature.scalar_type());
  // A view would share the buffer's version: each later feature would count as a change of this feature.
  auto sizes = buffer_.sizes().vec();
  sizes[1] = feature.size(1);
  const at::Tensor slot =
      part_of_storage(buffer_, buffer_.scalar_type(), filled_ * buffer_.stride(1), sizes, buffer_.strides());
  features_.push_back(feature_slots_detail::PutFeatureFunction::apply(feature, &slot));
  filled_ += feature.size(1);
}

at::Tensor FeatureSlots::result() const {
  return feature_slots_detail::AllFeaturesFunction::apply(at::TensorList(features_), &buffer_);
}

}  // namespace palimpsest::ops
