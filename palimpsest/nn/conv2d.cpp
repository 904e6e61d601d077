#include "palimpsest/nn/conv2d.h"

#include "palimpsest/base/error.h"
#include "palimpsest/nn/common/libtorch_layer.h"
#include "palimpsest/nn/conv2d/functional.h"
#include "palimpsest/ops/autocast.h"
#include "palimpsest/ops/parallel_convolutions.h"

#include <ATen/ops/cat.h>

#include <algorithm>
#include <variant>
#include <vector>

namespace palimpsest::nn::conv2d_detail {
namespace {

/// Returns whether the padding is zeros, given in pixels.
bool has_plain_padding(const torch::nn::Conv2dImpl& conv) {
  return std::holds_alternative<torch::ExpandingArray<2>>(conv.options.padding()) &&
         std::holds_alternative<torch::enumtype::kZeros>(conv.options.padding_mode());
}

bool runs_operator(const torch::nn::Conv2dImpl& conv, const at::Tensor& x, ConvolutionBackend backend) {
  // The operator needs a batch dimension.
  if (!has_plain_padding(conv) || x.dim() != 4) return false;
  if (backend == ConvolutionBackend::kFastest) return true;
  const auto precision = ops::autocast_precision(x);
  if (!precision) return false;
  return backend == ConvolutionBackend::kLibtorch ||
         ops::weight_gradient_precision(ops::product_precision(*precision, x), x).compute_in_f32;
}

}  // namespace

ops::ConvolutionOptions geometry(const torch::nn::Conv2dImpl& conv) {
  const auto& o = conv.options;
  if (!has_plain_padding(conv))
    throw Error(ErrorKind::kUsage,
                "a convolution that shares a node of the graph with a normalization or an activation needs "
                "zero padding given in pixels; with other padding use strategy 'inplace_2' or 'standard'");
  const auto list = [](const auto& array) { return std::vector<int64_t>(array->begin(), array->end()); };
  return {list(o.stride()), list(std::get<torch::ExpandingArray<2>>(o.padding())), list(o.dilation()),
          o.groups()};
}

std::optional<at::Tensor> bias(const torch::nn::Conv2dImpl& conv) {
  return or_none(conv.bias);
}

at::Tensor forward(torch::nn::Conv2dImpl& conv, const at::Tensor& x, ConvolutionBackend backend) {
  if (!runs_operator(conv, x, backend)) return conv.torch::nn::Conv2dImpl::forward(x);
  return ops::convolution(x, conv.weight, bias(conv), geometry(conv));
}

}  // namespace palimpsest::nn::conv2d_detail

namespace palimpsest::nn {

ConvolutionBackend convolution_backend(Strategy strategy) {
  return strategy == Strategy::kStandard ? ConvolutionBackend::kLibtorchLayer : ConvolutionBackend::kFastest;
}

Conv2dImpl::Conv2dImpl(int64_t in_channels, int64_t out_channels, torch::ExpandingArray<2> kernel_size)
    : Conv2dImpl(torch::nn::Conv2dOptions(in_channels, out_channels, kernel_size)) {}

Conv2dImpl::Conv2dImpl(const torch::nn::Conv2dOptions& options, ConvolutionBackend backend)
    : torch::nn::Conv2dImpl(options), backend(backend) {}

at::Tensor Conv2dImpl::forward(const at::Tensor& x) {
  return conv2d_detail::forward(*this, x, backend);
}

std::shared_ptr<torch::nn::Module> Conv2dImpl::clone(const std::optional<at::Device>& device) const {
  return clone_layer(*this, device);
}

void Conv2dImpl::pretty_print(std::ostream& stream) const {
  print_as_ours<torch::nn::Conv2dImpl>(*this, stream);
}

at::Tensor stacked_forward(std::vector<Conv2d>& convs, const at::Tensor& x) {
  const bool one_operator = std::all_of(convs.begin(), convs.end(), [&](const Conv2d& conv) {
    return conv->backend == ConvolutionBackend::kFastest && !conv->bias.defined() &&
           conv2d_detail::runs_operator(*conv, x, conv->backend);
  });
  std::vector<at::Tensor> tensors;
  if (!one_operator) {
    for (Conv2d& conv : convs) tensors.push_back(conv->forward(x));
    return at::cat(tensors, 1);
  }
  std::vector<ops::ConvolutionOptions> options;
  for (const Conv2d& conv : convs) {
    tensors.push_back(conv->weight);
    options.push_back(conv2d_detail::geometry(*conv));
  }
  return ops::parallel_convolutions(x, tensors, options);
}

}  // namespace palimpsest::nn
