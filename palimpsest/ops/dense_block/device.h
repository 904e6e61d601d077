#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/ops/common/autocast.h"
#include "palimpsest/ops/dense_block.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <optional>

/// How a layer of ops::dense_block reads the features before it: all of the block that differs between
/// devices. On the CPU its normalization, activation and 1x1 convolution are one kernel, z of which stays in
/// the caches (kernels/dense_block.h). On a GPU z takes memory for as long as the layer's 1x1 convolution
/// runs, which is libtorch's (kernels/cuda/dense_block.h); nothing is copied to the host or waited for.
namespace palimpsest::ops {

/// The features of all layers, and what is known of them: mean and biased variance of this batch, f64.
struct DenseBuffer {
  at::Tensor values;     ///< (N, C_total, H, W), dense in `layout`
  at::Tensor mean, var;  ///< (C_total); undefined where no normalization asks for them
  Layout layout = Layout::kNCHW;

  int64_t per_channel() const { return values.numel() / values.size(1); }
};

/// A tensor of the buffer's images, type and layout with that many channels, not initialized.
at::Tensor dense_empty(const DenseBuffer& buffer, int64_t channels);

/// What backward adds up over the readers of each channel: see kernels::DenseCorrection. (C_total) each, f64,
/// on the buffer's device.
struct DenseCorrections {
  at::Tensor constant, per_deviation;

  /// Zeros.
  explicit DenseCorrections(const DenseBuffer& buffer);
};

/// The first `channels` of the buffer as one layer reads them.
struct DenseRead {
  const DenseBuffer& buffer;
  int64_t channels;
  const DenseLayer& layer;  ///< norm1, options1 and kernel1 of it
  bool normalizes;          ///< pre-activation order; else the convolution reads the features as they are
  const std::optional<ProductPrecision>& precision;
};

/// Which gradients of a DenseRead are asked for.
struct DenseReadWants {
  bool features = false, weight = false, bias = false, kernel = false;
};

/// Of norm1's weight and bias (of a type at least as wide as the maths) and of kernel1 (of its own type);
/// undefined where not asked for.
struct DenseReadGradients {
  at::Tensor weight, bias, kernel;
};

struct DenseDeviceKernels {
  /// Whether the state of the device's generator can be read and put back at any time, to draw dropout's
  /// masks again; else they are kept.
  bool replays_dropout;
  /// conv1(act1(norm1(features))): fresh, dense in the buffer's layout. `moves_running`: norm1's running
  /// statistics move towards the buffer's.
  at::Tensor (*forward)(const DenseRead& read, bool moves_running);
  /// From dh, dense in the buffer's layout: what is wanted, of which the features' share is added to
  /// `gradient` (of the buffer's shape, in the type of the maths) and, where statistics are the batch's, to
  /// `corrections`.
  DenseReadGradients (*backward)(const DenseRead& read, const at::Tensor& dh, const at::Tensor& gradient,
                                 DenseCorrections& corrections, const DenseReadWants& wants);
  /// The gradient of `count` channels from `first` on, of the buffer's type, dense, when all readers have
  /// added.
  at::Tensor (*feature_gradient)(const DenseBuffer& buffer, int64_t first, int64_t count,
                                 const at::Tensor& gradient, const DenseCorrections& corrections);
  /// Mean and variance of `values`, dense in the buffer's layout, into those of the channels from `first` on.
  void (*statistics)(const DenseBuffer& buffer, int64_t first, const at::Tensor& values);
};

/// Of CPU and CUDA. Tests put others in their place.
DenseDeviceKernels& dense_device_kernels(c10::DeviceType device);
DenseDeviceKernels dense_cpu_kernels();
DenseDeviceKernels dense_cuda_kernels();

}  // namespace palimpsest::ops
