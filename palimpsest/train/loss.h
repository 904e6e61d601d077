#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::train {

struct LossOptions {
  std::string kind = "cross_entropy";  ///< or "bootstrap": per image, the hardest share of its valid pixels
  int64_t ignore_id = 255;             ///< class id of void pixels, which do not count
  /// p in (0, 1]. p < 1: bootstrap selects only pixels whose true class has a probability below p.
  double bootstrap_probability = 1.0;
  /// m in (0, 1]: bootstrap selects at most the hardest ceil(m * n) of an image's n valid pixels.
  double bootstrap_share = 0.25;
  double label_smoothing = 0;  ///< e in [0, 1): share of the loss that all classes have in common
  /// w: one number >= 0 per class, not all 0; empty: all are 1. Rare classes get larger weights.
  std::vector<double> class_weights = {};
};

/// Returns the mean loss as a differentiable scalar of the logits' dtype. logits x: (N, C, ...); targets t:
/// i64 (N, ...). For images the logits may be coarser than the targets, (N, C, h, w) and (N, H, W) with h <=
/// H and w <= W: x is then at::upsample_bilinear2d of them, without align_corners.
///   L             = 1/|S| sum_{i in S} (log sum_c exp(x[i,c]) - x[i,t_i])
///   dL/dx[i,c]    = (softmax(x[i])_c - [c = t_i]) / |S| for i in S, 0 for any other pixel
///   cross_entropy:  S = the pixels that are not void
///   bootstrap:      S = those of them that bootstrapping selects
/// With label smoothing e and class weights w (ops/upsampled_loss.h), as at::cross_entropy_loss:
///   L             = 1/W sum_{i in S} ((1-e) w[t_i] l(i,t_i) + e/C sum_c w[c] l(i,c))
///                   with l(i,c) = log sum_k exp(x[i,k]) - x[i,c] and W = sum_{i in S} w[t_i]
/// Bootstrapping ranks the pixels by l(i,t_i), whatever e and w are.
/// If W = 0 (all pixels void, or of classes of weight 0), L = 0 and dL/dx = 0, never NaN.
/// Memory, for images: the gradient of the logits as they are given is saved for backward. On the CPU no tensor
/// of the targets' size is made, but while bootstrapping ranks the pixels of an image, a number and a byte for
/// each (ops/upsampled_loss.h). A GPU has an f64 per pixel until forward ends; with bootstrapping another f64 and
/// two bytes, and what the sort of one image takes. With e or w that is so for all shapes. For other shapes the
/// logits, the targets, and one log-sum-exp and one byte per pixel are saved; there is no softmax tensor. The
/// losses of the pixels are summed in f64.
/// Throws Error(kUsage) as check_loss does, and Error(kData) for a class id that is neither in [0, C) nor the
/// ignore id; Error(kUsage) for class_weights of another number of classes.
/// Source of bootstrapping: Wu, Shen, van den Hengel, "Bridging Category-level and Instance-level Semantic
/// Image Segmentation", 2016.
at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options);

/// The loss of a batch as a sum and its weight. Those of several batches add up, and their loss together is
/// ops::mean_loss of the sums, because bootstrapping ranks the pixels of each image by itself. (The mean
/// of the means would lose the smoothing of a batch whose weight is 0.) The numbers stay on the device of the logits,
/// so that the host need not wait for it.
struct SummedLoss {
  at::Tensor sum;     ///< f64 scalar, differentiable: W L of loss()
  at::Tensor weight;  ///< f64 scalar: W, which is the number of pixels (images) |S| without class weights
  at::Tensor wrong_label;  ///< f64 scalar: the first class id that is wrong; NaN: none is
};

/// Does the same as loss(), and neither reads a number nor throws for a wrong class id on a GPU, where a wrong one
/// counts as void. On the CPU the operator for images throws. The caller throws for `wrong_label` when it reads it
/// (refuse_wrong_label). Nothing waits for a GPU.
SummedLoss summed_loss(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options);

/// Returns what loss_of_pixels() needs of pixels with probabilities p (C, H, W) and targets (1, H,
/// W), which must be classes: a row -log p of the true class; with label smoothing or class weights (see
/// loss()) two rows more, the loss of the pixel and the weight of its class. (rows, H * W).
at::Tensor losses_of_pixels(const at::Tensor& probabilities, const at::Tensor& targets,
                            const LossOptions& options);
/// Does the same as summed_loss() where the losses of each pixel are known already: losses (rows, N, P) are
/// those of losses_of_pixels(), `valid` (N, P) is false for void pixels. No label is wrong.
SummedLoss loss_of_pixels(const at::Tensor& losses, const at::Tensor& valid, const LossOptions& options);

/// Returns an estimate of the W of summed_loss() that needs no logits, an f64 scalar on the device of the
/// targets: exact but for bootstrapping, whose choice it does not know.
at::Tensor expected_weight(const at::Tensor& targets, const LossOptions& options);

/// Returns the values of LossOptions::kind.
std::vector<std::string> loss_names();
/// Throws Error(kUsage) for an unknown kind (with the nearest name) or a value out of range.
void check_loss(const LossOptions& options);

}  // namespace palimpsest::train
