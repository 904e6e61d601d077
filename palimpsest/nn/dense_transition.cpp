#include "palimpsest/nn/dense_transition.h"

#include "palimpsest/nn/convolve.h"
#include "palimpsest/ops/concat_abn_conv.h"

#include <ATen/ops/avg_pool2d.h>

namespace palimpsest::nn {
namespace {

bool is_plain_form(DenseStrategy strategy) {
  return strategy == DenseStrategy::kNaive || strategy == DenseStrategy::kSharedGradient;
}

}  // namespace

NormOptions reader_of_block(const NormOptions& norm, DenseStrategy strategy) {
  NormOptions options = norm.out_of_place();
  options.strategy = is_plain_form(strategy) ? Strategy::kStandard : Strategy::kCheckpoint;
  return options;
}

DenseTransitionImpl::DenseTransitionImpl(int64_t in, int64_t out, const NormOptions& options,
                                         DenseStrategy strategy)
    : plain_(is_plain_form(strategy)) {
  norm_ = register_module("norm", Norm(in, reader_of_block(options, strategy)));
  conv_ = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).bias(false)));
}

at::Tensor DenseTransitionImpl::forward(const at::Tensor& x) {
  if (plain_) return at::avg_pool2d(convolve(conv_, norm_->forward(x), norm_->strategy), {2, 2});
  return ops::concat_abn_conv({x}, norm_->tensors(), conv_->weight, convolution_options(*conv_),
                              norm_->begin_operator(), /*pool=*/true);
}

}  // namespace palimpsest::nn
