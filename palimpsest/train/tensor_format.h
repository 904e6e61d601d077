#pragma once

#include "palimpsest/amp/precision.h"
#include "palimpsest/data/loader.h"
#include "palimpsest/nn/model.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace palimpsest::train {

/// Element type, layout and place of a network's tensors.
struct TensorFormat {
  at::ScalarType dtype = at::kFloat;                ///< of parameters and images
  bool channels_last = false;                       ///< (N, C, H, W) lies in memory as (N, H, W, C)
  amp::Precision precision = amp::Precision::kF32;  ///< what is computed in
  c10::Device device = c10::DeviceType::CPU;        ///< of everything; a GPU with its index

  /// `dtype` is "f32" or "f64", `precision` one of amp::precision_names(); throws Error(kUsage) with the
  /// nearest name, and for another precision than f32 with f64. `device`: train/device.h.
  static TensorFormat parse(const std::string& dtype, bool channels_last,
                            const std::string& precision = "f32", const std::string& device = "cpu");

  /// Moves parameters and buffers to the device in place, converts those of floating point (counters stay
  /// i64) and lays four-dimensional ones out as the images. Does nothing the second time. Make the optimizer
  /// afterwards.
  void convert(torch::nn::Module& model) const;
  /// `images` in this format; the same tensor when it is so already.
  at::Tensor convert(const at::Tensor& images) const;
  /// Its images in this format, its targets on the device.
  void convert(data::Batch& batch) const;
  /// The logits of `images`, which are in this format: computed in `precision`, and of type f32 at least, as
  /// a loss wants them.
  at::Tensor forward(nn::Model& model, const at::Tensor& images) const;
};

}  // namespace palimpsest::train
