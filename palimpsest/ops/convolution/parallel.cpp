#include "palimpsest/ops/parallel_convolutions.h"

#include "palimpsest/ops/common/gradients.h"
#include "palimpsest/ops/convolution/functional.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

namespace palimpsest::ops::convolution_detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kParallel = "parallel_convolutions";

/// Returns the options of all convolutions in one list of numbers, which a node can save.
std::vector<int64_t> packed(const std::vector<ConvolutionOptions>& options) {
  std::vector<int64_t> numbers;
  for (const ConvolutionOptions& o : options) {
    for (const auto* values : {&o.stride, &o.padding, &o.dilation})
      numbers.insert(numbers.end(), values->begin(), values->end());
    numbers.push_back(o.groups);
  }
  return numbers;
}

std::vector<ConvolutionOptions> unpacked(const std::vector<int64_t>& numbers, int64_t axes) {
  std::vector<ConvolutionOptions> options;
  for (auto it = numbers.begin(); it != numbers.end();) {
    const auto take = [&] {
      std::vector<int64_t> values(it, it + axes);
      it += axes;
      return values;
    };
    ConvolutionOptions o;
    o.stride = take();
    o.padding = take();
    o.dilation = take();
    o.groups = *it++;
    options.push_back(std::move(o));
  }
  return options;
}

at::Tensor stacked_forward(const at::Tensor& x, at::TensorList weights,
                           const std::vector<ConvolutionOptions>& options,
                           const std::optional<ProductPrecision>& precision) {
  int64_t channels = 0, first = 0;
  for (const at::Tensor& weight : weights) channels += weight.size(0);
  at::Tensor result;
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor y = forward(x, weights[i], std::nullopt, options[i], precision);
    if (!result.defined()) {
      auto sizes = y.sizes().vec();
      sizes[1] = channels;
      result = at::empty(sizes, y.options(), y.suggest_memory_format());
    }
    TORCH_CHECK(y.sizes().slice(2) == result.sizes().slice(2), "[", kParallel,
                "] all convolutions must give one spatial size, got ", result.sizes().slice(2), " and ",
                y.sizes().slice(2));
    result.narrow(1, first, y.size(1)).copy_(y);
    first += y.size(1);
  }
  return result;
}

class ParallelConvolutionsFunction : public torch::autograd::Function<ParallelConvolutionsFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList weights,
                            const std::vector<ConvolutionOptions>* options,
                            const std::optional<ProductPrecision>* precision) {
    variable_list saved{x};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["options"] = packed(*options);
    save_precision(ctx, *precision);
    return stacked_forward(x, weights, *options, *precision);
  }

  static variable_list backward(AutogradContext* ctx, variable_list& gradients) {
    refuse_double_backward(kParallel, "separate torch::conv2d without autocast");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::TensorList weights = at::TensorList(saved).slice(1);
    std::vector<at::Tensor> douts;
    std::vector<bool> need_weights;
    int64_t first = 0;
    for (const at::Tensor& weight : weights) {
      douts.push_back(gradients[0].narrow(1, first, weight.size(0)));
      need_weights.push_back(ctx->needs_input_grad(need_weights.size() + 1));
      first += weight.size(0);
    }
    ParallelGradients g =
        parallel_backward(douts, x, weights, unpacked(ctx->saved_data["options"].toIntVector(), x.dim() - 2),
                          ctx->needs_input_grad(0), need_weights, saved_precision(ctx));
    variable_list result{std::move(g.input)};
    std::move(g.weights.begin(), g.weights.end(), std::back_inserter(result));
    result.resize(result.size() + 2);
    return result;
  }
};

void check_parallel(const at::Tensor& x, at::TensorList weights,
                    const std::vector<ConvolutionOptions>& options) {
  TORCH_CHECK(!weights.empty() && weights.size() == options.size(), "[", kParallel,
              "] one or more weights, with one set of options each, are needed, got ", weights.size(),
              " weights and ", options.size(), " sets of options");
  for (size_t i = 0; i < weights.size(); ++i) {
    check(kParallel, x, weights[i], std::nullopt, options[i]);
    TORCH_CHECK(weights[i].scalar_type() == weights[0].scalar_type(), "[", kParallel,
                "] all weights must have one dtype, got ", weights[0].scalar_type(), " and ",
                weights[i].scalar_type());
  }
  TORCH_CHECK(autocast_precision(x) || x.scalar_type() == weights[0].scalar_type(), "[", kParallel,
              "] without autocast, x must have the dtype of the weights, ", weights[0].scalar_type(),
              ", got ", x.scalar_type());
}

}  // namespace
}  // namespace palimpsest::ops::convolution_detail

namespace palimpsest::ops {

at::Tensor parallel_convolutions(const at::Tensor& x, at::TensorList weights,
                                 const std::vector<ConvolutionOptions>& options) {
  using namespace convolution_detail;
  check_parallel(x, weights, options);
  const auto precision = autocast_precision(x);
  // A cast that autograd records: for an f32 input, the 16-bit copy is saved.
  const at::Tensor input = precision ? x.to(precision->storage) : x;
  const bool recorded =
      c10::GradMode::is_enabled() &&
      (input.requires_grad() ||
       std::any_of(weights.begin(), weights.end(), [](const at::Tensor& w) { return w.requires_grad(); }));
  return recorded ? ParallelConvolutionsFunction::apply(input, weights, &options, &precision)
                  : stacked_forward(input, weights, options, precision);
}

}  // namespace palimpsest::ops
