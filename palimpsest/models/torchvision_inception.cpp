#include "palimpsest/models/torchvision_inception.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/models/common/module_place.h"
#include "palimpsest/nn/max_pool.h"
#include "palimpsest/nn/stacked_norms.h"

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>

#include <utility>

namespace palimpsest::models {
namespace {

constexpr NormConstants kUnitConstants{.eps = 1e-3};

std::shared_ptr<ConvNormAct> unit(int64_t in, const UnitShape& shape, const nn::NormOptions& norm) {
  const BranchConvolution& c = shape.convolution;
  const nn::Conv2d conv(torch::nn::Conv2dOptions(in, c.channels, {c.height, c.width})
                            .stride(c.stride)
                            .padding({shape.padded ? c.height / 2 : 0, shape.padded ? c.width / 2 : 0})
                            .bias(false),
                        nn::convolution_backend(norm.strategy));
  return std::make_shared<ConvNormAct>(conv, norm_of(c.channels, norm, kUnitConstants), "conv", "bn");
}

/// Runs the units but for the last one's normalization. Each normalization before it goes into the convolution
/// that reads it, so that the strategies may run the two as one.
at::Tensor run_to_last_norm(std::vector<std::shared_ptr<ConvNormAct>>& units, const at::Tensor& x) {
  at::Tensor h = units.front()->conv->forward(x);
  for (std::size_t i = 1; i < units.size(); ++i)
    h = units[i - 1]->norm->forward_into(std::move(h), units[i]->conv);
  return h;
}

at::Tensor run_units(std::vector<std::shared_ptr<ConvNormAct>>& units, const at::Tensor& x) {
  return units.back()->norm->forward(run_to_last_norm(units, x));
}

int64_t least_side_of(const TorchvisionInceptionShape& shape) {
  std::vector<Window> windows;
  const auto pool = [&](const UnitPool& p) { windows.push_back({p.kernel, p.stride, 0, p.ceil_mode}); };
  for (const auto& stem : shape.stem) {
    for (const auto& u : stem.units)
      windows.push_back(
          {u.convolution.height, u.convolution.stride, u.padded ? u.convolution.height / 2 : 0});
    pool(stem.pool);
  }
  for (const auto& block : shape.blocks) {
    if (block.stride > 1) windows.push_back({3, block.stride, 0});
    if (block.pool) pool(*block.pool);
  }
  return least_side(windows);
}

}  // namespace

UnitBlock::UnitBlock(const UnitBlockShape& shape, int64_t in, const nn::NormOptions& norm)
    : stride_(shape.stride) {
  for (const auto& b : shape.branches) {
    Branch branch;
    branch.pool = b.pool;
    int64_t channels = in;
    for (const UnitShape& u : b.chain) {
      branch.chain.push_back(register_below(*this, u.name, unit(channels, u, norm)));
      channels = u.convolution.channels;
    }
    for (const UnitShape& u : b.ends) {
      const auto end = register_below(*this, u.name, unit(channels, u, norm));
      branch.ends.push_back(end->conv);
      end_norms_.push_back(end->norm);
      out_ += u.convolution.channels;
    }
    if (b.ends.empty()) out_ += in;
    branches_.push_back(std::move(branch));
  }
}

at::Tensor UnitBlock::pooled(const at::Tensor& x, BranchPool pool) const {
  if (pool == BranchPool::kNone) return x;
  const int64_t padding = stride_ == 1 ? 1 : 0;
  return pool == BranchPool::kAverage
             ? at::avg_pool2d(x, 3, stride_, padding)
             : nn::max_pool2d(x, end_norms_.front()->options.strategy(), 3, stride_, padding);
}

at::Tensor UnitBlock::forward(const at::Tensor& x) {
  std::vector<at::Tensor> ends, passed;
  for (auto& branch : branches_) {
    at::Tensor h = pooled(x, branch.pool);
    if (branch.ends.empty()) {
      passed.push_back(std::move(h));
    } else if (branch.ends.size() == 1 && !branch.chain.empty()) {
      h = run_to_last_norm(branch.chain, h);
      ends.push_back(branch.chain.back()->norm->forward_into(std::move(h), branch.ends.front()));
    } else {
      if (!branch.chain.empty()) h = run_units(branch.chain, h);
      for (auto& end : branch.ends) ends.push_back(end->forward(h));
    }
  }
  at::Tensor stacked = nn::forward_stacked(std::move(ends), end_norms_);
  if (passed.empty()) return stacked;
  passed.insert(passed.begin(), std::move(stacked));
  return at::cat(passed, 1);
}

TorchvisionInception::TorchvisionInception(const TorchvisionInceptionShape& shape,
                                           const BackboneOptions& options)
    : shape_(shape), strategy_(options.norm.strategy), least_side_(least_side_of(shape)) {
  shape_.dropout = options.dropout.value_or(shape.dropout);
  int64_t channels = 3;
  for (const auto& stem : shape.stem) {
    std::vector<std::shared_ptr<ConvNormAct>> units;
    for (const UnitShape& u : stem.units) {
      units.push_back(register_module(u.name, unit(channels, u, options.norm)));
      channels = u.convolution.channels;
    }
    stem_.push_back(std::move(units));
  }
  for (const auto& block : shape.blocks) {
    blocks_.push_back(
        register_module(block.name, std::make_shared<UnitBlock>(block, channels, options.norm)));
    channels = blocks_.back()->out_channels();
  }
  initialize_convolutions(*this, options.norm);
  register_classifier(channels, options.classes);
}

at::Tensor TorchvisionInception::pooled(const at::Tensor& x, const UnitPool& pool) const {
  return nn::max_pool2d(x, strategy_, pool.kernel, pool.stride, 0, pool.ceil_mode);
}

at::Tensor TorchvisionInception::features(const at::Tensor& images) {
  check_images(shape_.name, images);
  check_least_side(shape_.name, images, least_side_);
  at::Tensor x = images;
  for (std::size_t i = 0; i < stem_.size(); ++i) x = pooled(run_units(stem_[i], x), shape_.stem[i].pool);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->forward(x);
    if (const auto& pool = shape_.blocks[i].pool) x = pooled(x, *pool);
  }
  return x;
}

at::Tensor TorchvisionInception::forward(const at::Tensor& images) {
  at::Tensor x = features(images);
  if (!has_classifier()) return x;
  return classify(at::dropout(x.mean({2, 3}), shape_.dropout, is_training()));
}

}  // namespace palimpsest::models
