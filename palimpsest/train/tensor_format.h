#pragma once

#include "palimpsest/amp/precision.h"
#include "palimpsest/data/loader.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <string>

namespace palimpsest::train {

/// Element type, layout and device of a network's tensors, and the precision of the computation.
struct TensorFormat {
  at::ScalarType dtype = at::kFloat;                ///< of parameters and images
  bool channels_last = false;                       ///< (N, C, H, W) lies in memory as (N, H, W, C)
  amp::Precision precision = amp::Precision::kF32;  ///< of the forward and backward pass (train/network.h)
  c10::Device device = c10::DeviceType::CPU;        ///< of all tensors; a GPU with its index

  /// Returns the format with these names. `dtype` is "f32" or "f64", `precision` is one of
  /// amp::precision_names(), `device` is a text of train/device.h. Throws Error(kUsage) for any other name
  /// (with the nearest one), and for f64 with a precision other than f32.
  static TensorFormat parse(const std::string& dtype, bool channels_last,
                            const std::string& precision = "f32", const std::string& device = "cpu");

  /// Moves parameters and buffers to the device in place, converts floating-point tensors (counters stay
  /// i64), and gives four-dimensional tensors the layout of the images. A second call does nothing. Make the
  /// optimizer afterwards: its state takes the dtype of the parameters.
  void convert(torch::nn::Module& module) const;
  /// Returns `images` in this format; the same tensor if it already has this format.
  at::Tensor convert(const at::Tensor& images) const;
  /// Converts the images of a batch and moves its targets, if it has any, to the device. Images and targets of bytes travel as
  /// such: on the device the images are normalized and the targets become i64.
  void convert(data::Batch& batch) const;
};

}  // namespace palimpsest::train
