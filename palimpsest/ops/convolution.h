#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace palimpsest::ops {

/// stride, padding and dilation have one value per spatial dimension.
struct ConvolutionOptions {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};

/// Convolution. libtorch runs it, except for passes where a kernel of ours takes less time (kernels/conv2d.h;
/// benchmarks/convolution_time.cpp measures them). These passes compute in f32 on a CPU, channels-last, with two
/// spatial dimensions:
///   depthwise                    the weight gradient, if the kernel is 3, 5, 7, 9 or 11 pixels wide
///   groups of 2 to 16 channels   forward (without bias) and both gradients
///   wider groups                 forward and both gradients of 3x3 kernels of stride 1 over many pixels, from
///                                16 channels on; forward (without bias) and both gradients of 1x1 kernels
///                                from 64 channels on; the weight gradient, if the kernel is 1x1 or strided
///                                or the output has few pixels
/// 16-bit passes that this CPU does not multiply faster than f32 are computed in f32 (ops/autocast.h): by the
/// kernels for groups of 16 channels or more, which widen values as they read them, or in parts of the batch.
/// Results differ from libtorch's in rounding only, and the same tensors are saved for backward. Under
/// autocast the f32 weight is saved, not a 16-bit copy (ops/autocast.h).
///
/// x: (N, C, spatial...) with 1 to 3 spatial dimensions; weight: (C_out, C / groups, spatial...); bias:
/// (C_out) or none. Under autocast it runs in autocast's dtype, whatever the dtypes of x and weight are,
/// unless x is f64. Double backward is an error under autocast and where a pass is not libtorch's, e.g. in
/// f16 on a CPU.
/// Python: torch.ops.palimpsest.convolution.
/// Errors: c10::Error "[convolution] requirement, got value".
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       const ConvolutionOptions& options);

}  // namespace palimpsest::ops
