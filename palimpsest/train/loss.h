#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace palimpsest::train {

struct LossOptions {
  std::string kind = "cross_entropy";  ///< or "bootstrap": per image, the hardest share of its valid pixels
  int64_t ignore_id = 255;
  double bootstrap_probability = 1.0;  ///< p: pixels whose true class has probability below p are candidates
  double bootstrap_share = 0.25;       ///< m: keep at least this share of an image's valid pixels
};

/// Mean loss as a scalar with a gradient. logits (N, C, ...), targets i64 (N, ...). All pixels void: 0.
/// Online bootstrapping: requirement 28; Wu, Shen, van den Hengel, "Bridging Category-level and Instance-level
/// Semantic Image Segmentation", 2016.
at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options);

}  // namespace palimpsest::train
