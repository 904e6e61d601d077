#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::train {

struct LossOptions {
  std::string kind = "cross_entropy";  ///< or "bootstrap": per image, the hardest share of its valid pixels
  int64_t ignore_id = 255;             ///< class id of void pixels, which do not count
  double bootstrap_probability =
      1.0;  ///< p in (0, 1]: only pixels whose true class has a probability below p; 1: all
  double bootstrap_share =
      0.25;  ///< m in (0, 1]: of an image's n valid pixels at most the hardest ceil(m * n)
};

/// Mean loss as a scalar (of the logits' dtype) with a gradient. logits (N, C, ...), targets i64 (N, ...).
///   cross_entropy:  L = 1/|V| sum_{i in V} (log sum_c exp(x[i,c]) - x[i,t_i]),   V = pixels that are not
///   void bootstrap:      the same over the pixels B that bootstrapping selects instead of V; dL/dx is 0
///   elsewhere dL/dx[i,c] = (softmax(x[i])_c - [c = t_i]) / |V|
/// No pixel selected (all void): L = 0 and dL/dx = 0, never NaN.
/// Memory: for backward the logits themselves, one log-sum-exp and one byte a pixel, and the targets are
/// kept: there is no softmax tensor. Scratch: slabs of 2^18 values, and a few values a pixel while
/// bootstrapping ranks an image; backward allocates dL/dx. The pixels' losses are summed in f64. Throws
/// Error(kUsage) as check_loss does, Error(kData) for a class id that is neither in [0, C) nor the ignore id.
/// Online bootstrapping: requirement 28; Wu, Shen, van den Hengel, "Bridging Category-level and
/// Instance-level Semantic Image Segmentation", 2016.
at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options);

std::vector<std::string> loss_names();
/// Throws Error(kUsage): an unknown kind (with the nearest name) or a value out of range.
void check_loss(const LossOptions& options);

}  // namespace palimpsest::train
