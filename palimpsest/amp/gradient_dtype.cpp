#include "palimpsest/amp/gradient_dtype.h"

#include "palimpsest/base/error.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <string>

namespace palimpsest::amp {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorKind::kUsage, "[accumulate_gradients_in] " + message);
}

}  // namespace

void accumulate_gradients_in(at::ScalarType dtype, const std::vector<at::Tensor>& parameters) {
  if (dtype != at::kFloat && dtype != at::kHalf && dtype != at::kBFloat16)
    refuse(fmt::format("dtype must be f32, f16 or bf16, got {}", c10::toString(dtype)));
  for (const auto& parameter : parameters) {
    if (!parameter.is_leaf() || parameter.scalar_type() != at::kFloat)
      refuse(fmt::format("parameters must be f32 leaves, got {}{}", c10::toString(parameter.scalar_type()),
                         parameter.is_leaf() ? "" : " that is computed"));
    if (parameter.grad().defined() && parameter.grad().scalar_type() != dtype)
      refuse(fmt::format("gradients must be zeroed before their type changes, got one of {}",
                         c10::toString(parameter.grad().scalar_type())));
  }
  for (const auto& parameter : parameters) {
    parameter.set_grad_dtype(dtype);
    // The accumulating node of an earlier forward pass's graph has the old dtype.
    if (const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter))
      node->mutable_input_metadata(0).set_grad_dtype(dtype);
  }
}

}  // namespace palimpsest::amp
