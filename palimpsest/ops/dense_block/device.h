#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/dense_block.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

/// How a layer of ops::dense_block reads the features before it: everything in the block that differs between
/// devices.
/// CPU: one kernel runs normalization, activation and 1x1 convolution, and z stays in the caches
/// (kernels/dense_block.h).
/// GPU: z takes memory while libtorch's 1x1 convolution runs (kernels/cuda/dense_block.h). The host neither
/// copies nor waits.
namespace palimpsest::ops::dense_block_detail {

/// The features of all layers, and their statistics: mean and biased variance of the batch, f64.
struct Buffer {
  at::Tensor values;     ///< (N, C_total, H, W), contiguous in `layout`
  at::Tensor mean, var;  ///< (C_total); undefined if no normalization needs them
  std::string group{};   ///< the process group whose batches the statistics are of; empty: this process
  at::Tensor count{};    ///< (1), f64: values per channel in the group's batch; undefined without a group
  Layout layout = Layout::kNCHW;

  int64_t per_channel() const { return values.numel() / values.size(1); }
};

/// Returns an uninitialized tensor with `channels` channels and otherwise the shape, dtype and layout of the
/// buffer.
at::Tensor empty_channels(const Buffer& buffer, int64_t channels);

/// Sums over the readers of each channel, which backward subtracts at the end (kernels::DenseCorrection):
/// (C_total) each, f64, on the buffer's device. They are means over the values of this process; synchronize()
/// makes them means over the group's.
struct Corrections {
  at::Tensor constant, per_deviation;

  /// Begins with zeros.
  explicit Corrections(const Buffer& buffer);
};

/// The first `channels` of the buffer, as one layer reads them.
struct Read {
  const Buffer& buffer;
  int64_t channels;
  const DenseLayer& layer;  ///< only norm1, options1 and conv1_weight are used
  bool normalizes;          ///< pre-activation order; else the convolution reads the features as they are
  const std::optional<ProductPrecision>& precision;
};

/// Selects the gradients of a Read that are needed.
struct ReadWants {
  bool features = false, weight = false, bias = false, conv_weight = false;
};

/// The gradients of norm1's weight and bias (at least as wide as the accumulate type) and of conv1_weight
/// (its dtype); undefined where not needed.
struct ReadGradients {
  at::Tensor weight, bias, conv_weight;
};

struct Device {
  /// true: backward draws dropout's masks again from the saved state of the generator. false: masks are
  /// saved.
  bool replays_dropout;
  /// Returns conv1(act1(norm1(features))), a new tensor that is contiguous in the buffer's layout.
  /// `moves_running`: norm1's running statistics move towards the buffer's.
  at::Tensor (*forward)(const Read& read, bool moves_running);
  /// Returns the gradients that `wants` selects, from dh (contiguous in the buffer's layout). Adds the
  /// features' share to `gradient` (shape of the buffer, accumulate type) and, with statistics of the batch,
  /// to `corrections`.
  ReadGradients (*backward)(const Read& read, const at::Tensor& dh, const at::Tensor& gradient,
                            Corrections& corrections, const ReadWants& wants);
  /// Returns the gradient of `count` channels from `first` on, a new tensor with the buffer's dtype and
  /// layout. Call it after all readers of these channels have added their gradients.
  at::Tensor (*feature_gradient)(const Buffer& buffer, int64_t first, int64_t count,
                                 const at::Tensor& gradient, const Corrections& corrections);
  /// Writes mean and biased variance of `values`, one value per channel. They are contiguous in `layout`.
  void (*statistics)(const at::Tensor& values, Layout layout, double* mean, double* var);
};

/// Returns the kernels for tensors on the device of `like`. Raises c10::Error unless it is a CPU or a CUDA
/// device.
const Device& device_for(const at::Tensor& like);
const Device& cpu_device();
const Device& cuda_device();

}  // namespace palimpsest::ops::dense_block_detail
