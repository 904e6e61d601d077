#include "palimpsest/cli/model_summary.h"

#include <ATen/record_function.h>

#include <unordered_map>

namespace palimpsest::cli {
namespace {

/// The weights that no operator has read yet. The first reader is the outermost operator: `conv2d`, not the
/// function of a backend below it. Thread-local, because the callback is a plain function.
struct Reading {
  LayerSummary* layer;
  std::vector<int64_t> kernel;  // shape of the module's weight, which may be read through a view
};
thread_local std::unordered_map<const c10::TensorImpl*, Reading>* observed = nullptr;

struct Reader : at::ObserverContext {
  LayerSummary* layer = nullptr;
  at::Tensor weight;
  std::vector<int64_t> input;   // shape of the first tensor
  std::vector<int64_t> kernel;  // shape of the module's own weight
};

/// Every output (N, C_out, ...) of a convolution or a linear layer is a sum of one product per value of its
/// channel's weight. `weight`: of the module, (C_out, ...); a vector belongs to a normalization.
int64_t multiply_adds(const std::vector<int64_t>& weight, const at::Tensor& output) {
  if (weight.size() < 2 || !output.defined() || output.numel() == 0) return 0;
  int64_t products = 1;
  for (std::size_t d = 1; d < weight.size(); ++d) products *= weight[d];
  return output.numel() / output.size(0) * products;
}

std::unique_ptr<at::ObserverContext> on_enter(const at::RecordFunction& function) {
  auto context = std::make_unique<Reader>();
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor() || !observed) continue;
    const auto it = observed->find(input.toTensor().unsafeGetTensorImpl());
    if (it == observed->end()) continue;
    context->layer = it->second.layer;
    context->kernel = it->second.kernel;
    context->weight = input.toTensor();
    context->input = function.inputs()[0].toTensor().sizes().vec();
    observed->erase(it);  // the first reader only
  }
  return context;
}

void on_exit(const at::RecordFunction& function, at::ObserverContext* context) {
  auto& reader = *static_cast<Reader*>(context);
  if (!reader.layer) return;
  const auto& outputs = function.outputs();
  const at::Tensor output = !outputs.empty() && outputs[0].isTensor() ? outputs[0].toTensor() : at::Tensor();
  if (output.defined() && output.is_alias_of(reader.weight)) {
    // A linear layer transposes its weight first: the reader of that view is the layer.
    observed->emplace(output.unsafeGetTensorImpl(), Reading{reader.layer, reader.kernel});
    return;
  }
  // A normalization that overwrites its input returns only statistics.
  reader.layer->multiply_adds = multiply_adds(reader.kernel, output);
  reader.layer->output = output.defined() && output.dim() > 1 ? output.sizes().vec() : reader.input;
}

std::string shape_text(at::IntArrayRef sizes) {
  std::string text;
  for (const int64_t size : sizes) text.append(text.empty() ? "" : "x").append(std::to_string(size));
  return text;
}

}  // namespace

std::vector<LayerSummary> summarize(const torch::nn::Module& model, const std::function<void()>& forward) {
  std::vector<LayerSummary> layers;
  std::unordered_map<const c10::TensorImpl*, std::size_t> weights;
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    const auto own = entry.value()->named_parameters(/*recurse=*/false);
    if (own.is_empty()) continue;
    LayerSummary layer;
    layer.name = entry.key();
    layer.shape = shape_text(own[0].value().sizes());
    for (const auto& parameter : own) layer.parameters += parameter.value().numel();
    weights[own[0].value().unsafeGetTensorImpl()] = layers.size();
    layers.push_back(std::move(layer));
  }
  std::unordered_map<const c10::TensorImpl*, Reading> readers;
  for (const auto& [weight, index] : weights) readers[weight] = {&layers[index], weight->sizes().vec()};

  observed = &readers;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(on_enter, on_exit)
                                                     .needsInputs(true)
                                                     .needsOutputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
  try {
    forward();
  } catch (...) {
    at::removeCallback(handle);
    observed = nullptr;
    throw;
  }
  at::removeCallback(handle);
  observed = nullptr;
  return layers;
}

}  // namespace palimpsest::cli
