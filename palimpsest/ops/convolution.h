#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace palimpsest::ops {

/// One value per spatial dimension.
struct ConvolutionOptions {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};

/// Convolution by libtorch, except for passes where a kernel of ours takes less time (kernels/conv2d.h;
/// benchmarks/convolution_time.cpp has the figures). On a CPU, f32, channels-last, two spatial dimensions:
///   groups of 2 to 16 channels     forward and both gradients
///   wider groups, 1x1 or strided   the gradient of the weight; of any kernel size if the output has few
///   pixels
/// 16-bit passes that oneDNN has no kernel for on this CPU are computed in f32 (ops/autocast.h).
/// Results differ from libtorch's in rounding only, and as much is saved for backward. Under autocast less is
/// saved: the f32 weight itself, no 16-bit copy (ops/common/autocast.h).
///
/// x: (N, C, spatial...) with 1 to 3 spatial dimensions; weight: (C_out, C / groups, spatial...); bias:
/// (C_out) or none. Under autocast it runs in autocast's dtype, whatever the dtypes of x and weight are (f64
/// excepted). Double backward is an error under autocast and where a pass is not libtorch's.
/// Errors: c10::Error "[convolution] requirement, got value".
at::Tensor convolution(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       const ConvolutionOptions& options);

}  // namespace palimpsest::ops
