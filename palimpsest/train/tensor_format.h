#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace palimpsest::train {

/// Element type and layout that a network computes in.
struct TensorFormat {
  at::ScalarType dtype = at::kFloat;
  bool channels_last = false;  ///< (N, C, H, W) lies in memory as (N, H, W, C)

  /// `dtype` is "f32" or "f64"; throws Error(kUsage) with the nearest name.
  static TensorFormat parse(const std::string& dtype, bool channels_last);

  /// Converts floating-point parameters and buffers in place (counters stay i64) and lays four-dimensional
  /// ones out as the images. Does nothing the second time. Make the optimizer afterwards.
  void convert(torch::nn::Module& model) const;
  /// `images` in this format; the same tensor when it is so already.
  at::Tensor convert(const at::Tensor& images) const;
};

}  // namespace palimpsest::train
