#include "tests/ops/abn_case.h"

#include "palimpsest/nn/activation.h"

#include <gtest/gtest.h>

namespace palimpsest::ops::tests {
namespace {

OptionalTensor leaf(const OptionalTensor& t, at::ScalarType dtype) {
  if (!t) return std::nullopt;
  return t->detach().to(dtype, false, /*copy=*/true).set_requires_grad(t->requires_grad());
}

OptionalTensor copy(const OptionalTensor& t, at::ScalarType dtype) {
  return t ? OptionalTensor(t->to(dtype, false, /*copy=*/true)) : std::nullopt;
}

using Layer = std::function<at::Tensor(at::Tensor, const OptionalTensor& weight, const OptionalTensor& bias,
                                       const OptionalTensor& mean, const OptionalTensor& var,
                                       const OptionalTensor& residual)>;

Outcome run(const AbnCase& c, at::ScalarType dtype, const Layer& layer) {
  // Detached from the case, so that it can run any number of times; strides are kept.
  at::Tensor base = c.base.detach().to(dtype).set_requires_grad(true);
  const auto maths = dtype == at::kDouble ? at::kDouble : at::kFloat;
  const OptionalTensor weight = leaf(c.weight, maths), bias = leaf(c.bias, maths);
  const OptionalTensor residual = leaf(c.residual, dtype);
  const OptionalTensor mean = copy(c.running_mean, maths), var = copy(c.running_var, maths);
  Outcome outcome;
  outcome.z = layer(c.view(base.clone()), weight, bias, mean, var, residual);
  at::Tensor value = outcome.z.detach().clone();
  std::vector<at::Tensor> inputs{base};
  if (weight) inputs.push_back(*weight);
  if (bias) inputs.push_back(*bias);
  if (residual) inputs.push_back(*residual);
  const auto gradients = torch::autograd::grad({outcome.z}, inputs, {c.dz.to(dtype)});
  outcome.z = value;
  outcome.dx = gradients[0];
  if (weight) outcome.dweight = gradients[1];
  if (bias) outcome.dbias = gradients[weight ? 2 : 1];
  if (residual) outcome.dresidual = gradients.back();
  if (mean) outcome.running_mean = *mean;
  if (var) outcome.running_var = *var;
  return outcome;
}

}  // namespace

AbnCase make_case(std::vector<int64_t> shape, at::ScalarType dtype, int64_t seed) {
  torch::manual_seed(seed + 1);
  const int64_t channels = shape[1];
  AbnCase c;
  c.base = torch::randn(shape, at::kDouble).mul(1.3).add(0.7).to(dtype);
  const at::Tensor sign = torch::arange(channels).remainder(2).mul(2).sub(1);
  c.weight = torch::rand(channels, at::kDouble).mul(1.2).add(0.3).mul(sign).to(dtype).set_requires_grad(true);
  c.bias = torch::randn(channels, at::kDouble).mul(0.5).to(dtype).set_requires_grad(true);
  c.running_mean = torch::randn(channels, at::kDouble).to(dtype);
  c.running_var = torch::rand(channels, at::kDouble).add(0.5).to(dtype);
  c.dz = torch::randn(shape, at::kDouble).to(dtype);
  return c;
}

Outcome run_layer(const AbnCase& c, bool in_place) {
  return run(c, c.base.scalar_type(),
             [&](at::Tensor x, const auto& weight, const auto& bias, const auto& mean, const auto& var,
                 const auto& residual) {
               return in_place ? abn_(x, {weight, bias, mean, var}, c.options, residual)
                               : abn(x, {weight, bias, mean, var}, c.options, residual);
             });
}

Outcome run_truth(const AbnCase& c) {
  return run(c, at::kDouble,
             [&](at::Tensor x, const auto& weight, const auto& bias, const auto& mean, const auto& var,
                 const auto& residual) {
               // Contiguous: libtorch's frozen batch norm has wrong gradients where the strides of x and of
               // the incoming gradient differ, as at N = H = 1.
               at::Tensor y = at::batch_norm(x.contiguous(), weight, bias, mean, var, c.options.training,
                                             c.options.momentum, c.options.eps, false);
               if (residual) y = y + (c.options.relu_residual ? at::relu(*residual) : *residual);
               return activate(y, c.options.activation, c.options.activation_param);
             });
}

at::Tensor activate(const at::Tensor& y, Activation activation, double param) {
  // Not at::softplus: it goes over to y at 20, and with that threshold out of reach its gradient is wrong.
  if (activation == Activation::kSoftplus) return at::logaddexp(y, at::zeros_like(y));
  return nn::activate(y, activation, param);
}

void expect_right(const AbnCase& c, bool in_place) {
  SCOPED_TRACE(c.name + (in_place ? ", in place" : ", out of place") + ", " +
               c10::getDtypeNames(c.base.scalar_type()).first);
  const Outcome got = run_layer(c, in_place), want = run_truth(c);
  const double limit = tolerance_across_kinks(c.base.scalar_type());
  const auto expect_close = [](const char* what, const at::Tensor& g, const at::Tensor& w, double bound) {
    ASSERT_EQ(g.defined(), w.defined()) << what;
    if (!g.defined()) return;
    ASSERT_EQ(g.sizes(), w.sizes()) << what;
    EXPECT_LE(relative_error(g, w), bound) << what;
  };
  expect_close("output", got.z, want.z, limit);
  expect_close("gradient of x", got.dx, want.dx, limit);
  expect_close("gradient of weight", got.dweight, want.dweight, limit);
  expect_close("gradient of bias", got.dbias, want.dbias, limit);
  expect_close("gradient of residual", got.dresidual, want.dresidual, limit);
  expect_close("running mean", got.running_mean, want.running_mean, testing::kRunningStatistics);
  expect_close("running variance", got.running_var, want.running_var, testing::kRunningStatistics);
}

void for_each_form(const std::function<void(at::ScalarType, bool)>& test) {
  for (const auto dtype : {at::kFloat, at::kDouble})
    for (const bool in_place : {false, true}) test(dtype, in_place);
}

}  // namespace palimpsest::ops::tests
