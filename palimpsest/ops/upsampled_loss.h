#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>

/// The head of a segmentation network without tensors of the image's size: bilinear upsampling of the logits,
/// softmax and cross-entropy as one operator, and upsampling and argmax as another. The formulas are in
/// kernels/upsampled_loss.h.
/// Python: torch.ops.palimpsest.upsampled_cross_entropy, torch.ops.palimpsest.upsampled_argmax.
namespace palimpsest::ops {

/// The range of a class weight that is not 0: sums of weights, and their inverses, are numbers in f32, too.
inline constexpr double kLeastClassWeight = 1e-30, kMostClassWeight = 1e30;

struct UpsampledCrossEntropyOptions {
  /// One number per class, 0 or from kLeastClassWeight to kMostClassWeight; none: all are 1.
  std::optional<at::Tensor> weight{};
  int64_t ignore_index = 255;  ///< class id of void pixels, which do not count
  double label_smoothing = 0;  ///< in [0, 1]
  bool align_corners = false;  ///< as of at::upsample_bilinear2d
  /// Online bootstrapping: per image, the hardest ceil(share * n) of its n valid pixels count, and of these
  /// only those whose class has a probability below bootstrap_probability. Both in (0, 1]; 1: all count.
  double bootstrap_share = 1;
  double bootstrap_probability = 1;
  /// false: on a GPU the host does not wait to learn whether a target is wrong. A wrong one is treated as
  /// ignored there, and `first_wrong` tells. On the CPU it is an error in any case.
  bool checks_targets = true;
  /// false: the loss is not divided by the weight, and is an f64 scalar. The losses and weights of parts add up.
  bool mean = true;
};

struct UpsampledCrossEntropy {
  at::Tensor loss;  ///< the mean, a scalar; 0 if the weight is 0
  /// f64 scalar: the weights of the pixels that count, summed; without weights their number.
  at::Tensor weight;
  /// f64 scalar: the place in `targets` of the first one that is neither a class nor ignored; at least the
  /// number of targets if there is none.
  at::Tensor first_wrong;
};

/// Returns at::cross_entropy_loss(at::upsample_bilinear2d(logits, targets' size), targets), with
/// bootstrapping if it is asked for. No tensor of (N, C, H, W) is made: forward writes the gradient of the
/// small logits, which is all that is saved for backward, in f32 (f64 for f64).
///
/// logits: (N, C, h, w); f32, f64, f16 or bf16, on the CPU or a GPU. Contiguous and channels-last tensors run
///          natively. 16-bit logits are widened to f32 first. The loss is f32 then, else of the logits' dtype.
/// targets: (N, H, W), i64 or u8: class ids in [0, C), or ignore_index.
/// Gradient: logits. Double backward is an error.
/// Errors: c10::Error "[upsampled_cross_entropy] requirement, got value"; c10::IndexError for a target that
///         is neither a class nor ignored. On a GPU the host waits once to know that, unless checks_targets is
///         false. While a CUDA graph is captured such a target is treated as ignored, and the weights are not
///         checked.
UpsampledCrossEntropy upsampled_cross_entropy(const at::Tensor& logits, const at::Tensor& targets,
                                              const UpsampledCrossEntropyOptions& options = {});

/// Returns sum / weight, 0 where the weight is 0: the mean of losses and weights that were added up. Scalars of f64, or
/// tensors of them; the gradient is that of the sum alone.
at::Tensor mean_loss(const at::Tensor& sum, const at::Tensor& weight);

/// Returns at::upsample_bilinear2d(logits, size).argmax(1), (N, H, W) of i64, without the upsampled logits.
/// Of equal logits the first class counts; NaN is above any number. Not differentiable.
at::Tensor upsampled_argmax(const at::Tensor& logits, at::IntArrayRef size, bool align_corners = false);

}  // namespace palimpsest::ops
