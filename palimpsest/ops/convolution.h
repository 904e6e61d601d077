#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

/// Convolution: libtorch's, but for the passes that a kernel of ours was measured to do in less time
/// (kernels/conv2d.h; benchmarks/convolution_time.cpp). On a CPU, f32, channels-last, two spatial dimensions:
///   groups of 2 to 16 channels     forward and both gradients
///   wider groups, 1x1 or strided   the weight's gradient; of any kernel where the output has few pixels
/// Everything else runs as it does in libtorch. The results differ in rounding alone, and keep as much; under
/// autocast less: the weight as it is given, not a 16-bit copy of it (ops/common/autocast.h).
namespace palimpsest::ops {

/// One value for each spatial axis.
struct ConvolutionOptions {
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};

/// conv(x). x: (N, C, spatial...); weight: (C_out, C / groups, spatial...), bias: (C_out) or none. Under
/// autocast it runs in autocast's type, as libtorch's does, whatever the types of x and weight (f64
/// excepted). Gradients once: a second derivative is an error under autocast and where a kernel of ours runs.
at::Tensor convolve(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                    const ConvolutionOptions& options);

/// Its requirements beyond libtorch's, raising c10::Error "[op] requirement, got value": matching numbers of
/// dimensions, options and channels.
void check_convolution(const char* op, const at::Tensor& x, const at::Tensor& weight,
                       const ConvolutionOptions& options);

}  // namespace palimpsest::ops
