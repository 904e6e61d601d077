#include "palimpsest/nn/residual_end.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

namespace palimpsest::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of f32, a piece of the sum is 256 KiB: it is still in a core's own cache when it is activated.
constexpr int64_t kPieceValues = 65536;

bool same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.is_non_overlapping_and_dense();
}

at::Tensor activated_sum(const at::Tensor& branch, const at::Tensor& shortcut, Activation activation,
                         double param) {
  if (!same_dense_layout(branch, shortcut)) return activate_(branch + shortcut, activation, param);
  const auto out = at::empty_like(branch);
  const int64_t values = out.numel();
  const auto flat = [&](const at::Tensor& t) { return t.as_strided({values}, {1}); };
  const auto a = flat(branch), b = flat(shortcut), c = flat(out);
  at::parallel_for(0, (values + kPieceValues - 1) / kPieceValues, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_graph;  // a worker thread does not inherit the caller's
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i * kPieceValues, count = std::min(kPieceValues, values - first);
      auto piece = c.narrow(0, first, count);
      at::add_out(piece, a.narrow(0, first, count), b.narrow(0, first, count));
      activate_(std::move(piece), activation, param);
    }
  });
  return out;
}

class AddAndActivate : public torch::autograd::Function<AddAndActivate> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& branch, const at::Tensor& shortcut,
                            int64_t activation, double param) {
    auto out = activated_sum(branch, shortcut, static_cast<Activation>(activation), param);
    context->save_for_backward({out});
    context->saved_data["activation"] = activation;
    context->saved_data["param"] = param;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list& gradients) {
    auto dz = std::move(gradients[0]);
    if (!dz.defined()) return {dz, dz, {}, {}};
    const auto out = context->get_saved_variables()[0];
    const double param = context->saved_data["param"].toDouble();
    // Nobody sees the gradient change where this is the only reference to it and to its memory.
    const bool ours = !at::GradMode::is_enabled() && dz.use_count() == 1 && dz.storage().use_count() == 1 &&
                      same_dense_layout(dz, out);
    auto dy = ours ? dz : at::Tensor();
    if (static_cast<Activation>(context->saved_data["activation"].toInt()) == Activation::kELU) {
      dy = ours ? at::elu_backward_out(dy, dz, param, 1, 1, /*is_result=*/true, out)
                : at::elu_backward(dz, param, 1, 1, /*is_result=*/true, out);
    } else {
      dy = ours ? at::leaky_relu_backward_out(dy, dz, out, param, /*self_is_result=*/true)
                : at::leaky_relu_backward(dz, out, param, /*self_is_result=*/true);
    }
    return {dy, dy, {}, {}};
  }
};

}  // namespace

at::Tensor add_and_activate(at::Tensor branch, const at::Tensor& shortcut, const NormOptions& options) {
  if (options.strategy == Strategy::kStandard) {
    return activate_(branch.add_(shortcut), options.activation, options.activation_param);
  }
  if (options.activation == Activation::kIdentity) return branch + shortcut;
  return AddAndActivate::apply(branch, shortcut, static_cast<int64_t>(options.activation),
                               options.activation_param);
}

}  // namespace palimpsest::nn
