#pragma once

#include "palimpsest/nn/strategy.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <ostream>
#include <vector>

namespace palimpsest::nn {

/// The convolution that a Conv2d runs. The results differ in rounding only.
enum class ConvolutionBackend {
  /// Runs ops::convolution: a kernel of ours where it takes less time than libtorch's. Under autocast no
  /// 16-bit copy of the weight is saved for backward.
  kFastest,
  /// Runs torch::nn::Conv2d. Under autocast it runs ops::convolution, which saves no 16-bit copy of the
  /// weight for backward.
  kLibtorch,
  /// Runs torch::nn::Conv2d, the baseline of all comparisons. Under autocast it saves a 16-bit copy of the
  /// weight, and does the same as kLibtorch where the weight gradient is computed in f32 (ops/autocast.h):
  /// for "pseudo f16", and on a CPU for f16, and for bf16 that the processor does not multiply faster than
  /// f32.
  kLibtorchLayer,
};

/// Returns kLibtorchLayer for `standard`, kFastest for the other strategies.
ConvolutionBackend convolution_backend(Strategy strategy);

/// A torch::nn::Conv2d, with its options, parameters and state-dict keys (weight, bias), and a choice of
/// kernels.
///   nn::Conv2d conv1(torch::nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false));
/// x: (N, C_in, H, W) or (C_in, H, W). Padding modes other than zeros, and padding by name, run libtorch's
/// layer for every backend. Double backward is an error where ops::convolution is not libtorch's
/// (ops/convolution.h). clone() of a torch::nn::Cloneable parent builds the layer anew and copies libtorch's
/// part only: `backend` is lost there. An nn::Cloneable parent copies it.
class Conv2dImpl : public torch::nn::Conv2dImpl {
 public:
  Conv2dImpl(int64_t in_channels, int64_t out_channels, torch::ExpandingArray<2> kernel_size);
  /* implicit */ Conv2dImpl(const torch::nn::Conv2dOptions& options,
                            ConvolutionBackend backend = ConvolutionBackend::kFastest);

  /// libtorch's forward is not virtual: a call through torch::nn::Conv2dImpl& runs libtorch's.
  // NOLINTNEXTLINE(bugprone-derived-method-shadowing-base-method)
  at::Tensor forward(const at::Tensor& x);
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  /// A change takes effect at the next forward.
  ConvolutionBackend backend;
};

TORCH_MODULE(Conv2d);

/// Returns the outputs of all convolutions of x, stacked along channels; their spatial sizes must be equal.
/// If all have backend kFastest and no bias, ops::parallel_convolutions computes them, and backward holds one
/// gradient of the size of x less than for separate convolutions.
at::Tensor stacked_forward(std::vector<Conv2d>& convs, const at::Tensor& x);

}  // namespace palimpsest::nn
