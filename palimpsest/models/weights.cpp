#include "palimpsest/models/weights.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/state_dict.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace palimpsest::models {
namespace {

constexpr std::string_view kBody = "body.";
constexpr std::string_view kDense = "features.denseblock1.";

bool is_counter(const std::string& key) {
  return key.ends_with("num_batches_tracked");
}

bool is_classifier(const std::string& key) {
  return key.starts_with("fc.") || key.starts_with("cls.") || key.starts_with("classifier.");
}

std::map<std::string, at::Tensor> by_key(const NamedTensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

nn::Misfit compare_entries(const NamedTensors& tensors, const NamedTensors& wanted) {
  const auto file = by_key(tensors);
  nn::Misfit misfit;
  std::set<std::string> known;
  for (const auto& [key, tensor] : wanted) {
    known.insert(key);
    const auto found = file.find(key);
    if (is_counter(key)) continue;
    if (found == file.end()) {
      misfit.missing.push_back(key);
    } else {  // of any floating type
      misfit.fits(key, found->second, tensor, /*same_type=*/!found->second.is_floating_point());
    }
  }
  for (const auto& [key, tensor] : file)
    if (!known.contains(key) && !is_counter(key)) misfit.unexpected.push_back(key);
  return misfit;
}

}  // namespace

std::vector<std::string> weight_format_names() {
  return {"auto", "torchvision", "inplace_abn"};
}

WeightFormat weight_format(std::string_view name, const std::string& model, const NamedTensors& tensors) {
  if (name == "torchvision") return WeightFormat::kTorchvision;
  if (name == "inplace_abn") return WeightFormat::kInplaceAbn;
  if (name != "auto")
    throw Error(ErrorKind::kUsage, unknown_name_message("format", name, weight_format_names()));
  const bool counts =
      std::any_of(tensors.begin(), tensors.end(), [](const auto& entry) { return is_counter(entry.first); });
  return model.ends_with("_preact") && !counts ? WeightFormat::kInplaceAbn : WeightFormat::kTorchvision;
}

std::string to_string(WeightFormat format) {
  return format == WeightFormat::kInplaceAbn ? "inplace_abn" : "torchvision";
}

int64_t unwrap(NamedTensors& tensors) {
  std::erase_if(tensors, [](const auto& entry) { return entry.first.starts_with("palimpsest."); });
  int64_t changed = 0;
  for (auto& [key, tensor] : tensors) {
    const std::size_t before = key.size();
    for (bool again = true; again;) {
      again = false;
      for (const std::string_view prefix : {"module.", "_orig_mod."}) {
        if (!key.starts_with(prefix)) continue;
        key.erase(0, prefix.size());
        again = true;
      }
    }
    changed += key.size() != before;
  }
  return changed;
}

std::optional<int64_t> class_count(const NamedTensors& tensors) {
  for (const auto& [key, tensor] : tensors)
    if ((key == "fc.weight" || key == "cls.weight" || key == "classifier.weight") && tensor.dim() > 0 &&
        tensor.size(0) > 0)
      return tensor.size(0);
  return std::nullopt;
}

nn::Misfit compare(const NamedTensors& tensors, const torch::nn::Module& model) {
  return compare_entries(tensors, nn::state_dict(model));
}

std::string fitting_model(const NamedTensors& tensors) {
  const auto classes = class_count(tensors);
  if (!classes) return "";
  const bool segments = std::any_of(tensors.begin(), tensors.end(),
                                    [](const auto& entry) { return entry.first.starts_with(kBody); });
  const bool dense = std::any_of(tensors.begin(), tensors.end(),
                                 [](const auto& entry) { return entry.first.starts_with(kDense); });
  for (const std::string& name : names()) {
    if (name.starts_with("deeplabv3_") != segments || name.starts_with("densenet") != dense) continue;
    ModelOptions options;
    options.classes = *classes;
    if (compare(tensors, *make(name, options)).empty()) return name;
  }
  return "";
}

PlainWeights plain_weights(const NamedTensors& tensors, const torch::nn::Module& model, WeightFormat format) {
  std::map<std::string, double> eps;  // of the normalization that a weight belongs to
  for (const auto& entry : model.named_modules("", /*include_self=*/false))
    if (const auto* norm = entry.value()->as<nn::NormImpl>())
      eps[entry.key() + ".weight"] = norm->options.eps();
  const auto file = by_key(tensors);
  PlainWeights plain;
  for (const auto& [key, tensor] : nn::state_dict(model)) {
    const auto found = file.find(key);
    if (is_counter(key)) {
      const bool counted = found != file.end() && found->second.numel() == 1;
      plain.counters += !counted;
      plain.tensors.emplace_back(
          key, counted ? found->second.to(at::kLong).reshape({}) : at::zeros({}, at::kLong));
      continue;
    }
    at::Tensor value = found->second;
    if (value.scalar_type() != at::kDouble) value = value.to(at::kFloat);
    if (const auto norm = eps.find(key); format == WeightFormat::kInplaceAbn && norm != eps.end()) {
      value = value.abs().add_(norm->second);  // in f32, as the package computes it at every pass
      ++plain.rescaled;
    }
    plain.tensors.emplace_back(key, std::move(value));
  }
  return plain;
}

Start start_from(nn::Model& model, NamedTensors tensors, bool reset_classifier, const std::string& source) {
  NamedTensors wanted = nn::state_dict(model);
  const auto has_body = [](const auto& entry) { return entry.first.starts_with(kBody); };
  Start start = reset_classifier ? Start::kAllButClassifier : Start::kAll;
  if (model.segments() && std::none_of(tensors.begin(), tensors.end(), has_body)) {
    start = Start::kBody;
    std::erase_if(wanted, [&](const auto& entry) { return !has_body(entry); });
    std::erase_if(tensors, [](const auto& entry) { return is_classifier(entry.first); });
    for (auto& [key, tensor] : tensors) key.insert(0, kBody);
  } else if (reset_classifier) {
    for (auto* list : {&wanted, &tensors})
      std::erase_if(*list, [](const auto& entry) { return is_classifier(entry.first); });
  }
  const nn::Misfit misfit = compare_entries(tensors, wanted);
  if (!misfit.empty()) {
    const bool classifier_only = misfit.missing.empty() && misfit.unexpected.empty() &&
                                 std::all_of(misfit.differing.begin(), misfit.differing.end(), is_classifier);
    throw Error(
        ErrorKind::kCheckpoint,
        fmt::format("{} does not fit the model: {}; {}", source, misfit.text(),
                    classifier_only ? "reset_classifier (--reset-classifier) leaves the classifier out, for "
                                      "another number of classes"
                                    : "use the model that it was made with"));
  }
  const at::NoGradGuard no_grad;
  const auto file = by_key(tensors);
  for (const auto& [key, tensor] : wanted)
    if (const auto found = file.find(key); found != file.end() && found->second.sizes() == tensor.sizes())
      at::Tensor(tensor).copy_(found->second);
  return start;
}

}  // namespace palimpsest::models
