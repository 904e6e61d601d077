#include "palimpsest/nn/batch_norm_act_conv2d.h"

#include "palimpsest/base/error.h"

#include <string>

namespace palimpsest::nn {

BatchNormActConv2dImpl::BatchNormActConv2dImpl(const BatchNormActOptions& norm_options,
                                               const torch::nn::Conv2dOptions& conv_options)
    : norm(register_module("norm", BatchNormAct(norm_options))),
      conv(register_module("conv", Conv2d(conv_options, convolution_backend(norm_options.strategy())))) {
  if (norm_options.channels() != conv_options.in_channels())
    throw Error(ErrorKind::kUsage,
                "[BatchNormActConv2d] the convolution must read the channels of the normalization, " +
                    std::to_string(norm_options.channels()) +
                    ", got in_channels = " + std::to_string(conv_options.in_channels()));
}

at::Tensor BatchNormActConv2dImpl::forward(at::Tensor x) {
  return norm->forward_into(std::move(x), conv);
}

}  // namespace palimpsest::nn
