#pragma once

#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/cloneable.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/deferred_activation.h"
#include "palimpsest/nn/squeeze_excitation.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace palimpsest::models {

/// eps and momentum of the normalizations of a network (nn::BatchNormActOptions).
struct NormConstants {
  double eps = 1e-5, momentum = 0.1;
};

/// A convolution and its normalization, under torchvision's names: "0" and "1", in its Inception networks "conv"
/// and "bn".
class ConvNormAct : public nn::Cloneable<ConvNormAct> {
 public:
  ConvNormAct(const nn::Conv2d& conv, const nn::BatchNormActOptions& norm, const std::string& conv_name = "0",
              const std::string& norm_name = "1");
  /// Returns act(bn(conv(x))).
  at::Tensor forward(const at::Tensor& x);

  nn::Conv2d conv;
  nn::BatchNormAct norm;

 private:
  void rebind(nn::Clones& clones) override { clones(conv, norm); }
};

/// The options of an inverted residual block.
struct InvertedResidualOptions {
  int64_t in = 0, expanded = 0, out = 0;  ///< channels; in = expanded: there is no expansion
  int64_t kernel = 3;                     ///< of the depthwise convolution
  int64_t stride = 1, dilation = 1;       ///< of the depthwise convolution, too
  /// Its channels are those of the expansion. Nothing: the block has no squeeze and excitation.
  std::optional<nn::SqueezeExcitationOptions> squeeze = std::nullopt;
  /// The probability with which an image of a training batch leaves a block out that has a shortcut.
  double stochastic_depth = 0;
  nn::NormOptions norm = {};
  NormConstants constants = {};
  nn::DeferredActivation input = {};  ///< the activation that the producer of the input left to this block
};

/// bn3(project(gated(act(bn2(depthwise(act(bn1(expand(x)))))))) + x: a 1x1 convolution to more channels, a
/// depthwise one, squeeze and excitation, and a 1x1 convolution without an activation. Without a change of
/// shape x is added. With stochastic depth each image of a training batch drops the branch with probability p,
/// and the others multiply it by 1 / (1 - p); the choices come from libtorch's generator, as torchvision's do.
/// Names: block.0.0 (expand), block.0.1, block.1.0 (depthwise), block.1.1, block.2.fc1, block.2.fc2,
/// block.3.0 (project), block.3.1; without a part, those after it move up.
///
/// Channels saved for backward beside x, with E expanded and C outer channels: of SiLU, hard swish and other
/// activations that write a new tensor 7E + C under `standard` (input, activation's input and output of two
/// normalizations, and the gated product), 2E + C under the other strategies. There one tensor of the
/// depthwise normalization is saved for the activation, the means, the gates and the last convolution
/// (ops/squeeze_excite_conv.h). Under `inplace_bit` two bits per expanded channel and pixel are saved as well.
/// Sources: Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018; Howard et al.,
/// "Searching for MobileNetV3", ICCV 2019; Huang et al., "Deep Networks with Stochastic Depth", ECCV 2016.
class InvertedResidual : public nn::Cloneable<InvertedResidual> {
 public:
  explicit InvertedResidual(const InvertedResidualOptions& options);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor project(const at::Tensor& expanded);
  at::Tensor add_shortcut(at::Tensor h, const at::Tensor& x);
  void rebind(nn::Clones& clones) override { clones(block_, expand_, depthwise_, squeeze_, project_); }

  nn::DeferredActivation input_, squeezed_;  // which activations are deferred is fixed at construction
  bool has_shortcut_;
  double stochastic_depth_;
  std::shared_ptr<torch::nn::Module> block_;
  std::shared_ptr<ConvNormAct> expand_, depthwise_, project_;
  nn::SqueezeExcitation squeeze_{nullptr};
};

/// Returns BatchNormActOptions(channels, norm) with these constants.
nn::BatchNormActOptions norm_of(int64_t channels, const nn::NormOptions& norm,
                                const NormConstants& constants);

/// Initializes the convolutions below `module` as torchvision does, those of squeeze and excitation too: by
/// Kaiming's normal rule, fan-out (common/convolution.h), and biases with 0.
void initialize_mobile(torch::nn::Module& module, const nn::NormOptions& norm);

}  // namespace palimpsest::models
