#include "palimpsest/kernels/abn.h"
#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

namespace palimpsest::instructions {
namespace {

using kernels::AbnProblem;
using kernels::Saved;

/// The tensors of a forward and of a backward pass.
template <class S>
struct Abn {
  using T = accumulate_t<S>;
  Tensor<S> x, z, dz, dx, saved;
  Tensor<T> weight, bias, sum_dy, sum_dy_xhat;
  Tensor<double> mean, var, inv_std;

  explicit Abn(const AbnProblem& p)
      : x(uniform<S>(p.shape.elements(), -1, 2)),
        z(x.size()),
        dz(uniform<S>(p.shape.elements(), -1, 1)),
        dx(x.size()),
        saved(kernels::saves_aside(p.saved) ? x.size() : 0),
        weight(uniform<T>(p.shape.c, 0.5, 1.5)),
        bias(uniform<T>(p.shape.c, -0.5, 0.5)),
        sum_dy(weight.size()),
        sum_dy_xhat(weight.size()),
        mean(weight.size()),
        var(weight.size()),
        inv_std(weight.size()) {}

  void forward(const AbnProblem& p) {
    kernels::cpu::abn_forward(p, 1e-5,
                              {.x = x.data(),
                               .weight = weight.data(),
                               .bias = bias.data(),
                               .z = z.data(),
                               .saved_values = saved.data(),
                               .mean = mean.data(),
                               .var = var.data(),
                               .inv_std = inv_std.data()});
  }

  void backward(const AbnProblem& p) {
    kernels::cpu::abn_backward(p, {.saved_values = kernels::saves_output(p.saved) ? z.data() : saved.data(),
                                   .dz = dz.data(),
                                   .weight = weight.data(),
                                   .bias = bias.data(),
                                   .mean = mean.data(),
                                   .inv_std = inv_std.data(),
                                   .sum_dy = sum_dy.data(),
                                   .sum_dy_xhat = sum_dy_xhat.data(),
                                   .dx = dx.data()});
  }
};

void add(std::vector<Case>& cases, const std::string& name, const AbnProblem& problem) {
  const int64_t values = problem.shape.elements();
  dispatch_float(problem.dtype, [&]<class S>() {
    const auto forward = std::mem_fn(&Abn<S>::forward), backward = std::mem_fn(&Abn<S>::backward);
    cases.push_back(case_of<Abn<S>>("abn_forward " + name, values, problem, forward));
    cases.push_back(case_of<Abn<S>>("abn_backward " + name, values, problem, backward, forward));
  });
}

}  // namespace

std::vector<Case> abn_cases() {
  std::vector<Case> cases;
  for (const auto& [dtype, type] : kDTypes) {
    add(cases, type + " NCHW", {.shape = {2, 16, 2809}, .layout = Layout::kNCHW, .dtype = dtype});
    add(cases, type + " channels-last",
        {.shape = {2, 64, 702}, .layout = Layout::kChannelsLast, .dtype = dtype});
  }
  add(cases, "f32 NCHW 7x7", {.shape = {16, 64, 49}});
  add(cases, "bf16 NCHW 14x14", {.shape = {16, 16, 196}, .dtype = DType::bf16});
  add(cases, "f32 NCHW elu", {.shape = {2, 16, 2809}, .activation = Activation::kELU, .activation_param = 1});
  add(cases, "f32 channels-last silu",
      {.shape = {2, 64, 702},
       .layout = Layout::kChannelsLast,
       .activation = Activation::kSiLU,
       .saved = Saved::kPreActivation});
  for (const auto& [activation, name] :
       {std::pair(Activation::kGELU, "gelu"), std::pair(Activation::kHardSwish, "hardswish")})
    add(cases, std::string("bf16 channels-last ") + name,
        {.shape = {2, 64, 702},
         .layout = Layout::kChannelsLast,
         .dtype = DType::bf16,
         .activation = activation,
         .saved = Saved::kPreActivation});
  add(cases, "f32 NCHW tanh", {.shape = {2, 16, 2809}, .activation = Activation::kTanh});
  add(cases, "f16 NCHW sigmoid",
      {.shape = {2, 16, 2809}, .dtype = DType::f16, .activation = Activation::kSigmoid});
  return cases;
}

}  // namespace palimpsest::instructions
