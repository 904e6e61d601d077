#include "palimpsest/models/inception.h"

#include "palimpsest/models/common/convolution.h"
#include "palimpsest/models/common/images.h"
#include "palimpsest/nn/max_pool.h"

#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>

namespace palimpsest::models {
namespace {

/// Makes a convolution. It has a bias in networks without normalization, which have no strategies.
nn::Conv2d rectangular(int64_t in, const BranchConvolution& c, bool normalized, nn::Strategy strategy) {
  return nn::Conv2d(torch::nn::Conv2dOptions(in, c.channels, {c.height, c.width})
                        .stride(c.stride)
                        .padding({c.height / 2, c.width / 2})
                        .bias(!normalized),
                    normalized ? nn::convolution_backend(strategy) : nn::ConvolutionBackend::kLibtorch);
}

/// The activation after a convolution in networks without normalization.
at::Tensor activated(at::Tensor x, const nn::NormOptions& norm) {
  return nn::activate_(std::move(x), norm.activation, norm.activation_param);
}

/// Padded 3x3 max pooling. Strategy `standard` runs libtorch's operator, as a baseline. Networks without
/// normalization, which have no strategies, run ours, which saves one byte per output.
at::Tensor max_pool_3x3(const at::Tensor& x, int64_t stride, bool normalized, nn::Strategy strategy) {
  return nn::max_pool2d(x, normalized ? strategy : nn::Strategy::kInplace2, 3, stride, 1);
}

}  // namespace

InceptionBlock::InceptionBlock(const InceptionBlockShape& shape, int64_t in, bool normalized,
                               const nn::NormOptions& norm)
    : stride_(shape.stride), norm_(norm) {
  int64_t ends = 0, passed = 0;
  for (const BranchShape& b : shape.branches) {
    Branch branch;
    branch.name = "branch" + std::to_string(branches_.size() + 1);
    branch.pool = b.pool;
    if (b.ends.empty()) {
      passed += in;
      branches_.push_back(std::move(branch));
      continue;
    }
    const auto parts = register_module(branch.name, std::make_shared<torch::nn::Module>());
    int64_t channels = in;
    for (const auto& c : b.chain) {
      const std::string number = std::to_string(branch.chain.size() + 1);
      branch.chain.push_back(
          parts->register_module("conv" + number, rectangular(channels, c, normalized, norm.strategy)));
      if (normalized)
        branch.norms.push_back(parts->register_module("bn" + number, nn::BatchNormAct(c.channels, norm)));
      channels = c.channels;
    }
    for (const auto& c : b.ends) {
      std::string name = "conv" + std::to_string(branch.chain.size() + 1);
      if (b.ends.size() > 1) name += static_cast<char>('a' + branch.ends.size());
      branch.ends.push_back(
          parts->register_module(name, rectangular(channels, c, normalized, norm.strategy)));
      branch.end_names.push_back(branch.name + "." + name);
      ends += c.channels;
    }
    branches_.push_back(std::move(branch));
  }
  if (normalized) bn_ = register_module("bn", nn::BatchNormAct(ends, norm));
  out_ = ends + passed;
}

at::Tensor InceptionBlock::pooled(const at::Tensor& x, BranchPool pool) const {
  if (pool == BranchPool::kAverage) return at::avg_pool2d(x, 3, stride_, 1);
  return pool == BranchPool::kMax ? max_pool_3x3(x, stride_, !bn_.is_empty(), norm_.strategy) : x;
}

void InceptionBlock::run(Branch& branch, const at::Tensor& x, std::vector<at::Tensor>& ends) {
  if (branch.chain.empty()) {
    for (auto& end : branch.ends) ends.push_back(end->forward(x));
    return;
  }
  const std::size_t last = branch.chain.size() - 1;
  at::Tensor h = branch.chain[0]->forward(x);
  for (std::size_t i = 0; i < last; ++i)
    h = bn_ ? branch.norms[i]->forward_into(std::move(h), branch.chain[i + 1])
            : branch.chain[i + 1]->forward(activated(std::move(h), norm_));
  if (bn_ && branch.ends.size() == 1) {
    ends.push_back(branch.norms[last]->forward_into(std::move(h), branch.ends[0]));
    return;
  }
  h = bn_ ? branch.norms[last]->forward(std::move(h)) : activated(std::move(h), norm_);
  for (auto& end : branch.ends) ends.push_back(end->forward(h));
}

at::Tensor InceptionBlock::forward(const at::Tensor& x) {
  std::vector<at::Tensor> ends, passed;
  for (auto& branch : branches_) {
    const at::Tensor input = pooled(x, branch.pool);
    if (branch.ends.empty()) {
      passed.push_back(input);
    } else {
      run(branch, input, ends);
    }
  }
  at::Tensor stacked = at::cat(ends, 1);
  ends.clear();  // frees the parts before the normalization of the stack begins
  stacked = bn_ ? bn_->forward(std::move(stacked)) : activated(std::move(stacked), norm_);
  if (passed.empty()) return stacked;
  passed.insert(passed.begin(), std::move(stacked));
  return at::cat(passed, 1);
}

std::vector<NormalizedNames> InceptionBlock::normalizations() const {
  std::vector<NormalizedNames> all;
  if (!bn_) return all;
  std::vector<std::string> ends;
  for (const Branch& branch : branches_) {
    for (std::size_t i = 1; i <= branch.chain.size(); ++i) {
      const std::string number = std::to_string(i);
      all.push_back({{branch.name + ".conv" + number}, branch.name + ".bn" + number});
    }
    ends.insert(ends.end(), branch.end_names.begin(), branch.end_names.end());
  }
  all.push_back({std::move(ends), "bn"});
  return all;
}

Inception::Inception(const InceptionShape& shape, const BackboneOptions& options)
    : shape_(shape), norm_(options.norm) {
  shape_.dropout = options.dropout.value_or(shape.dropout);
  int64_t channels = 3;
  for (const auto& s : shape.stem) {
    const std::string number = std::to_string(convs_.size() + 1);
    convs_.push_back(register_module("conv" + number,
                                     rectangular(channels, s.convolution, shape.normalized, norm_.strategy)));
    channels = s.convolution.channels;
    if (shape.normalized) norms_.push_back(register_module("bn" + number, nn::BatchNormAct(channels, norm_)));
  }
  for (const auto& block : shape.blocks) {
    blocks_.push_back(register_module(
        block.name, std::make_shared<InceptionBlock>(block, channels, shape.normalized, norm_)));
    channels = blocks_.back()->out_channels();
  }
  if (shape.normalized) {
    initialize_convolutions(*this, norm_);
  } else {
    initialize_plain_layers(*this, norm_);
  }
  register_classifier(channels, options.classes);
}

std::vector<NormalizedNames> Inception::normalizations() const {
  std::vector<NormalizedNames> all;
  for (std::size_t i = 1; i <= norms_.size(); ++i)
    all.push_back({{"conv" + std::to_string(i)}, "bn" + std::to_string(i)});
  return all;
}

at::Tensor Inception::features(const at::Tensor& images) {
  check_images(shape_.name, images);
  const auto halve = [&](const at::Tensor& x) {
    return max_pool_3x3(x, 2, shape_.normalized, norm_.strategy);
  };
  at::Tensor x = images;
  for (std::size_t i = 0; i < convs_.size(); ++i) {
    x = convs_[i]->forward(x);
    x = shape_.normalized ? norms_[i]->forward(std::move(x)) : activated(std::move(x), norm_);
    if (shape_.stem[i].pooled) x = halve(x);
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->forward(x);
    if (shape_.blocks[i].pooled) x = halve(x);
  }
  return x;
}

at::Tensor Inception::forward(const at::Tensor& images) {
  at::Tensor x = features(images);
  if (!has_classifier()) return x;
  return classify(at::dropout(x.mean({2, 3}), shape_.dropout, is_training()));
}

}  // namespace palimpsest::models
