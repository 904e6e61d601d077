#include "palimpsest/models/fold.h"

#include "palimpsest/base/error.h"
#include "palimpsest/models/deeplab.h"
#include "palimpsest/models/densenet.h"
#include "palimpsest/models/inception.h"
#include "palimpsest/models/inverted_residual.h"
#include "palimpsest/models/preact_block.h"
#include "palimpsest/models/residual.h"
#include "palimpsest/models/resnet.h"
#include "palimpsest/models/resnet_preact.h"
#include "palimpsest/models/resnext_preact.h"
#include "palimpsest/nn/fold.h"

#include <algorithm>
#include <utility>

namespace palimpsest::models {
namespace {

/// How the outputs of several convolutions become the input of one normalization.
enum class Join { kStacked, kSummed };

struct Site {
  std::vector<std::string> convs;  ///< names below the module that has the site
  std::string norm;
  Join join = Join::kStacked;
};

/// Returns the places in `module` where convolutions feed a normalization and nothing else.
std::vector<Site> sites(const torch::nn::Module& module) {
  if (module.as<ResNet>() || module.as<PreactResNet>()) return {{{"conv1"}, "bn1"}};
  if (module.as<PreactResNeXt>()) return {{{"mod1.conv1"}, "mod1.bn1"}, {{"mod1.conv2"}, "mod1.bn2"}};
  if (module.as<BasicBlock>())
    return {{{"conv1"}, "bn1"}, {{"conv2"}, "bn2"}, {{"downsample.0"}, "downsample.1"}};
  if (module.as<Bottleneck>())
    return {{{"conv1"}, "bn1"}, {{"conv2"}, "bn2"}, {{"conv3"}, "bn3"}, {{"downsample.0"}, "downsample.1"}};
  if (const auto* block = module.as<PreactBlock>()) {
    std::vector<Site> between;
    for (std::size_t i = 1; i < block->depth(); ++i)
      between.push_back({{"convs.conv" + std::to_string(i)}, "convs.bn" + std::to_string(i + 1)});
    return between;
  }
  if (module.as<ConvNormAct>()) return {{{"0"}, "1"}, {{"conv"}, "bn"}};
  if (module.as<DenseNet>()) {  // most stems have the first place only
    std::vector<Site> of_stem;
    for (const char* number : {"0", "1", "2"})
      of_stem.push_back({{std::string("features.conv") + number}, std::string("features.norm") + number});
    return of_stem;
  }
  if (const auto* layer = module.as<nn::DenseLayerImpl>()) {
    if (layer->is_pre_activation()) return {{{"conv1"}, "norm2"}};
    return {{{"conv1"}, "norm1"}, {{"conv2"}, "norm2"}};
  }
  if (const auto* transition = module.as<nn::DenseTransitionImpl>();
      transition && !transition->options.pre_activation())
    return {{{"conv"}, "norm"}};
  if (module.as<DeepLabV3Head>())
    return {{{"map_convs.0", "map_convs.1", "map_convs.2", "map_convs.3"}, "map_bn"},
            {{"global_pooling_conv"}, "global_pooling_bn"},
            {{"red_conv", "pool_red_conv"}, "red_bn", Join::kSummed}};
  std::vector<Site> of_inception;
  const auto take = [&](const std::vector<NormalizedNames>& all) {
    for (const auto& [convs, norm] : all) of_inception.push_back({convs, norm});
  };
  if (const auto* network = module.as<Inception>()) take(network->normalizations());
  if (const auto* block = module.as<InceptionBlock>()) take(block->normalizations());
  return of_inception;
}

/// Returns the module that owns the last part of a dotted name, and this last part.
std::pair<torch::nn::Module*, std::string> holder(torch::nn::Module& module, const std::string& name) {
  const auto dot = name.find('.');
  if (dot == std::string::npos) return {&module, name};
  const auto children = module.named_children();
  const auto* child = children.find(name.substr(0, dot));
  if (!child) return {nullptr, ""};
  return holder(**child, name.substr(dot + 1));
}

/// Returns nullptr if there is no such child: a block that keeps the shape has no `downsample`.
template <class Impl>
std::shared_ptr<Impl> find(torch::nn::Module& module, const std::string& name) {
  const auto [parent, last] = holder(module, name);
  if (!parent) return nullptr;
  const auto children = parent->named_children();
  const auto* child = children.find(last);
  return child ? std::dynamic_pointer_cast<Impl>(*child) : nullptr;
}

void fold_site(torch::nn::Module& module, const Site& site, nn::NormImpl& norm) {
  const auto affine = nn::inference_affine(norm);
  int64_t first = 0;
  for (const auto& name : site.convs) {
    const auto conv = find<torch::nn::Conv2dImpl>(module, name);
    if (!conv) throw Error(ErrorKind::kInternal, "fold: no convolution '" + name + "'");
    if (site.join == Join::kStacked) {
      nn::scale_convolution(*conv, affine.channels(first, conv->weight.size(0)));
      first += conv->weight.size(0);
    } else {  // s (a + b) + t = (s a + t) + s b
      nn::scale_convolution(*conv, {affine.scale, name == site.convs.front() ? affine.shift : at::Tensor()});
    }
  }
  nn::keep_activation_only(norm);
  const auto [parent, last] = holder(module, site.norm);
  parent->unregister_module(last);  // its owner still calls it, but no state dict has it any more
}

/// The folded network. It has the children of `model` under their own names, so that state-dict keys stay.
class FoldedModel : public nn::Model {
 public:
  explicit FoldedModel(std::shared_ptr<nn::Model> model) : model_(std::move(model)) {
    for (const auto& child : model_->named_children()) register_module(child.key(), child.value());
    eval();
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = std::make_shared<FoldedModel>(std::dynamic_pointer_cast<nn::Model>(model_->clone(device)));
    copy->train(is_training());
    return copy;
  }

  at::Tensor forward(const at::Tensor& images) override {
    if (is_training())
      throw Error(
          ErrorKind::kUsage,
          "a folded model has no batch statistics and is for inference: call eval(), or train the model "
          "that it was made of");
    const auto children = named_children();
    for (const auto& child : model_->named_children())
      if (children[child.key()] != child.value())
        throw Error(ErrorKind::kUsage, "'" + child.key() +
                                           "' of a folded model was replaced, which has no effect on it; "
                                           "replace the classifier before fold()");
    return model_->forward(images);
  }
  bool is_segmentation() const override { return model_->is_segmentation(); }

 private:
  std::shared_ptr<nn::Model> model_;
};

}  // namespace

std::shared_ptr<nn::Model> fold(std::shared_ptr<nn::Model> model, FoldReport* report) {
  if (model->is_training())
    throw Error(ErrorKind::kUsage,
                "a model is folded in eval mode, got one in training mode: call eval() first");
  if (std::dynamic_pointer_cast<FoldedModel>(model))
    throw Error(ErrorKind::kUsage, "the model is folded already");
  const auto modules = model->modules();
  if (std::none_of(modules.begin(), modules.end(),
                   [](const auto& m) { return m->template as<nn::NormImpl>(); }))
    throw Error(ErrorKind::kUsage, "a model without normalizations has nothing to fold; leave fold out");
  FoldReport names;
  for (const auto& entry : model->named_modules()) {
    const std::string prefix = entry.key().empty() ? "" : entry.key() + ".";
    for (const Site& site : sites(*entry.value())) {
      const auto norm = find<nn::NormImpl>(*entry.value(), site.norm);
      if (!norm) continue;
      fold_site(*entry.value(), site, *norm);
      names.folded.push_back(prefix + site.norm);
    }
  }
  for (const auto& entry : model->named_modules())
    if (entry.value()->as<nn::NormImpl>()) names.kept.push_back(entry.key());
  if (report) *report = std::move(names);
  return std::make_shared<FoldedModel>(std::move(model));
}

}  // namespace palimpsest::models
