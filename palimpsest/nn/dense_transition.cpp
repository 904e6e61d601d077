#include "palimpsest/nn/dense_transition.h"

#include "palimpsest/nn/conv2d/functional.h"
#include "palimpsest/ops/concat_abn_conv.h"

#include <ATen/ops/avg_pool2d.h>

namespace palimpsest::nn {
namespace {

bool runs_libtorch_layers(DenseStrategy strategy) {
  return strategy == DenseStrategy::kNaive || strategy == DenseStrategy::kSharedGradient;
}

}  // namespace

NormOptions reader_of_block(const NormOptions& norm, DenseStrategy strategy) {
  NormOptions options = norm.out_of_place();
  options.strategy = runs_libtorch_layers(strategy) ? Strategy::kStandard : Strategy::kCheckpoint;
  return options;
}

DenseTransitionImpl::DenseTransitionImpl(const DenseTransitionOptions& o) : options(o) {
  const NormOptions norm = o.pre_activation() ? reader_of_block(o.norm(), o.dense_strategy()) : o.norm();
  norm_ =
      register_module("norm", BatchNormAct(o.pre_activation() ? o.in_channels() : o.out_channels(), norm));
  conv_ = register_module("conv",
                          Conv2d(torch::nn::Conv2dOptions(o.in_channels(), o.out_channels(), 1).bias(false),
                                 convolution_backend(norm.strategy)));
}

at::Tensor DenseTransitionImpl::forward(const at::Tensor& x) {
  if (!options.pre_activation()) return at::avg_pool2d(norm_->forward(conv_->forward(x)), {2, 2});
  const bool is_empty = x.numel() == 0 && !norm_->shares_statistics();
  if (runs_libtorch_layers(options.dense_strategy()) || !norm_->fits_operator() || is_empty)
    return at::avg_pool2d(conv_->forward(norm_->forward(x)), {2, 2});
  return ops::concat_abn_conv({x}, norm_->tensors(), conv_->weight, conv2d_detail::geometry(*conv_),
                              norm_->begin_operator(), /*pool=*/true);
}

}  // namespace palimpsest::nn
