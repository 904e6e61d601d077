#include "palimpsest/models/weights.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/named_enum.h"
#include "palimpsest/models/common/release_names.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/nn/batch_norm_act.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>
#include <set>

namespace palimpsest::models {
namespace {

constexpr NamedEnum kWeightFormats{"format",
                                   {EnumName{WeightFormat::kAuto, "auto"},
                                    {WeightFormat::kTorchvision, "torchvision"},
                                    {WeightFormat::kInplaceAbn, "inplace_abn"}}};

constexpr std::string_view kBody = "body.";
constexpr std::string_view kDense = "features.denseblock1.";
constexpr std::string_view kPlain = "features.0.weight";  // of AlexNet and VGG
constexpr std::string_view kAuxiliary[] = {"aux1.", "aux2.", "AuxLogits."};

/// Returns whether the key is that of a classifier's weight and not below `place`, the greatest one so far: the
/// layers of "classifier" are numbered, and the last one is the classifier.
bool is_later_classifier_weight(const std::string& key, int& place) {
  if (key == "fc.weight" || key == "cls.weight" || key == "classifier.weight") return true;
  constexpr std::string_view kFirst = "classifier.", kLast = ".weight";
  if (!key.starts_with(kFirst) || !key.ends_with(kLast) || key.size() <= kFirst.size() + kLast.size())
    return false;
  const char* end = key.data() + key.size() - kLast.size();
  int number = -1;
  const auto [stop, error] = std::from_chars(key.data() + kFirst.size(), end, number);
  if (error != std::errc() || stop != end || number <= place) return false;
  place = number;
  return true;
}

/// Removes the point in "denselayer1.norm.1.weight". torchvision's published DenseNet files have it: a
/// module's name could hold a point when they were written. torchvision renames the keys when it loads them,
/// too.
void modernize(std::string& key) {
  constexpr std::string_view kLayer = "denselayer";
  std::size_t at = key.rfind(kLayer);
  if (at == std::string::npos) return;
  at = key.find_first_not_of("0123456789", at + kLayer.size());
  if (at == std::string::npos) return;
  for (const std::string_view part : {".norm.", ".conv.", ".relu."}) {
    const std::size_t number = at + part.size();
    if (key.compare(at, part.size(), part) != 0 || number + 1 >= key.size()) continue;
    if ((key[number] == '1' || key[number] == '2') && key[number + 1] == '.') key.erase(number - 1, 1);
    return;
  }
}

std::map<std::string, at::Tensor> by_key(const nn::StateDict& tensors) {
  return {tensors.begin(), tensors.end()};
}

}  // namespace

std::vector<std::string> weight_format_names() {
  return kWeightFormats.names();
}

WeightFormat weight_format(std::string_view name, const std::string& model, const nn::StateDict& tensors) {
  const WeightFormat format = kWeightFormats.parse(name);
  if (format != WeightFormat::kAuto) return format;
  const bool counts = std::any_of(tensors.begin(), tensors.end(),
                                  [](const auto& entry) { return nn::is_batch_counter(entry.first); });
  const bool of_the_package = (model.ends_with("_preact") && model.find("resnext") != std::string::npos) ||
                              model.find("wide_resnet") != std::string::npos || model.ends_with("_deep_stem");
  return of_the_package && !counts ? WeightFormat::kInplaceAbn : WeightFormat::kTorchvision;
}

std::string to_string(WeightFormat format) {
  return std::string(kWeightFormats.name(format));
}

int64_t unwrap(nn::StateDict& tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.starts_with("palimpsest."); });
  std::vector<std::string> before;
  for (const auto& [key, tensor] : tensors) before.push_back(key);
  for (auto& [key, tensor] : tensors) {
    for (bool again = true; again;) {
      again = false;
      for (const std::string_view prefix : {"module.", "_orig_mod."}) {
        if (!key.starts_with(prefix)) continue;
        key.erase(0, prefix.size());
        again = true;
      }
    }
    modernize(key);
  }
  rename_release_keys(tensors);
  int64_t changed = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) changed += tensors[i].first != before[i];
  std::erase_if(tensors, [](const auto& entry) {
    return std::any_of(std::begin(kAuxiliary), std::end(kAuxiliary),
                       [&](std::string_view prefix) { return entry.first.starts_with(prefix); });
  });
  std::set<std::string_view> keys;
  for (const auto& [key, tensor] : tensors)
    if (!keys.insert(key).second)
      throw Error(ErrorKind::kCheckpoint,
                  "the state dict has two tensors for '" + key +
                      "', with and without a prefix (module., _orig_mod., classifier.): remove one of them");
  return changed;
}

std::optional<int64_t> class_count(const nn::StateDict& tensors) {
  std::optional<int64_t> classes;
  int place = -1;
  for (const auto& [key, tensor] : tensors)
    // A file of no bytes may claim 10^9 classes of 0 features.
    if (tensor.dim() > 0 && tensor.numel() > 0 && is_later_classifier_weight(key, place))
      classes = tensor.size(0);
  return classes;
}

std::string fitting_model(const nn::StateDict& tensors) {
  const auto classes = class_count(tensors);
  if (!classes) return "";
  const bool has_body = std::any_of(tensors.begin(), tensors.end(),
                                    [](const auto& entry) { return entry.first.starts_with(kBody); });
  const bool dense = std::any_of(tensors.begin(), tensors.end(),
                                 [](const auto& entry) { return entry.first.starts_with(kDense); });
  const bool plain =
      std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) { return entry.first == kPlain; });
  for (const std::string& name : names()) {
    if (models::segments(name) != has_body || name.starts_with("densenet") != dense) continue;
    if ((name == "alexnet" || name == "vgg16") != plain) continue;
    ModelOptions options;
    options.classes = *classes;
    if (nn::compare(tensors, nn::state_dict(*make(name, options))).empty()) return name;
  }
  return "";
}

PlainWeights plain_weights(const nn::StateDict& tensors, const torch::nn::Module& model,
                           WeightFormat format) {
  std::map<std::string, double> eps;  // by the name of a normalization's weight
  for (const auto& entry : model.named_modules("", /*include_self=*/false))
    if (const auto* norm = entry.value()->as<nn::NormImpl>())
      eps[entry.key() + ".weight"] = norm->options.eps();
  const auto file = by_key(tensors);
  PlainWeights plain;
  for (const auto& [key, tensor] : nn::state_dict(model)) {
    const auto found = file.find(key);
    if (nn::is_batch_counter(key)) {
      const bool counted = found != file.end() && found->second.numel() == 1;
      plain.counters += !counted;
      plain.tensors.emplace_back(
          key, counted ? found->second.to(at::kLong).reshape({}) : at::zeros({}, at::kLong));
      continue;
    }
    at::Tensor value = found->second;
    if (value.scalar_type() != at::kDouble) value = value.to(at::kFloat);
    if (const auto norm = eps.find(key); format == WeightFormat::kInplaceAbn && norm != eps.end()) {
      value = value.abs().add_(norm->second);  // in f32, as the package does in every forward pass
      ++plain.rescaled;
    }
    plain.tensors.emplace_back(key, std::move(value));
  }
  return plain;
}

namespace {

/// The part of a model that a file gives, and the tensors of the file that belong to it.
struct Matched {
  Start start;
  nn::StateDict wanted, tensors;
  nn::LoadOptions options;
};

/// Throws Error(kCheckpoint) if they do not fit. Reads no values.
Matched match(const nn::Model& model, nn::StateDict tensors, bool reset_classifier,
              const std::string& source) {
  nn::StateDict wanted = nn::state_dict(model);
  const auto has_body = [](const auto& entry) { return entry.first.starts_with(kBody); };
  const auto is_classifier = [&](const std::string& key) {
    return !model.classifier_name().empty() && key.starts_with(model.classifier_name() + ".");
  };
  Start start = reset_classifier ? Start::kAllButClassifier : Start::kAll;
  if (model.is_segmentation() && std::none_of(tensors.begin(), tensors.end(), has_body)) {
    start = Start::kBody;
    std::erase_if(wanted, [&](const auto& entry) { return !has_body(entry); });
    std::erase_if(tensors, [](const auto& entry) {  // no body has these
      return entry.first.starts_with("fc.") || entry.first.starts_with("cls.") ||
             entry.first.starts_with("classifier.");
    });
    for (auto& [key, tensor] : tensors) key.insert(0, kBody);
  } else if (reset_classifier) {
    for (auto* list : {&wanted, &tensors})
      std::erase_if(*list, [&](const auto& entry) { return is_classifier(entry.first); });
  }
  const nn::StateDictDiff diff = nn::compare(tensors, wanted);
  const bool classifier_only = diff.missing.empty() && diff.unexpected.empty() &&
                               std::all_of(diff.mismatched.begin(), diff.mismatched.end(), is_classifier);
  nn::LoadOptions options;
  options.source = source;
  if (classifier_only)
    options.way_out =
        "reset_classifier (--reset-classifier) leaves the classifier out, for another number of classes";
  nn::check_fit(tensors, wanted, options);
  return {start, std::move(wanted), std::move(tensors), std::move(options)};
}

}  // namespace

void check_start(const nn::Model& model, nn::StateDict tensors, bool reset_classifier,
                 const std::string& source) {
  match(model, std::move(tensors), reset_classifier, source);
}

Start start_from(nn::Model& model, nn::StateDict tensors, bool reset_classifier, const std::string& source) {
  const Matched matched = match(model, std::move(tensors), reset_classifier, source);
  nn::load_state_dict(matched.wanted, matched.tensors, matched.options);
  return matched.start;
}

}  // namespace palimpsest::models
