#include "palimpsest/kernels/abn.h"

#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/kernels/formulas/precision.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

// The truth of the tests: one plain loop per formula, in double, rounded once where a value is stored.
namespace palimpsest::kernels::reference {
namespace {

int64_t index(const AbnProblem& problem, int64_t n, int64_t c, int64_t s) {
  const Shape3& shape = problem.shape;
  return problem.layout == Layout::kNCHW ? (n * shape.c + c) * shape.s + s : (n * shape.s + s) * shape.c + c;
}

// Calls function(i) with the index of every element of channel c.
template <class Function>
void for_each(const AbnProblem& problem, int64_t c, const Function& function) {
  for (int64_t n = 0; n < problem.shape.n; ++n)
    for (int64_t s = 0; s < problem.shape.s; ++s) function(index(problem, n, c, s));
}

double value(const void* tensor, DType dtype, int64_t i) {
  return dispatch_float(dtype,
                        [&]<class S>() { return static_cast<double>(static_cast<const S*>(tensor)[i]); });
}

void store(void* tensor, DType dtype, int64_t i, double v) {
  dispatch_float(dtype, [&]<class S>() { static_cast<S*>(tensor)[i] = static_cast<S>(v); });
}

// The type of parameters and sums.
DType accumulate_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

double parameter(const void* vector, const AbnProblem& problem, int64_t c, double absent) {
  return vector ? value(vector, accumulate_dtype(problem.dtype), c) : absent;
}

template <class Function>
void with_activation(const AbnProblem& problem, const Function& function) {
  dispatch_activation<double>(problem.activation, {problem.activation_param, precision_of(problem.dtype)},
                              function);
}

// The residual's part of y.
double residual_part(const AbnProblem& problem, const void* residual, int64_t i) {
  if (!residual) return 0;
  const double r = value(residual, problem.dtype, i);
  return problem.relu_residual && r <= 0 ? 0 : r;
}

// z and the saved value or bit at index i, from x.
void apply_element(const AbnProblem& problem, const AbnForward& forward, int64_t c, int64_t i) {
  const double w = parameter(forward.weight, problem, c, 1), b = parameter(forward.bias, problem, c, 0);
  const double xhat = (value(forward.x, problem.dtype, i) - forward.mean[c]) * forward.inv_std[c];
  double y = w * xhat + b;
  if (saves_aside(problem.saved)) {
    store(forward.saved_values, problem.dtype, i, problem.saved == Saved::kPreActivation ? y : xhat);
    // z comes from the rounded value, so that it can be recomputed bit for bit.
    const double saved_value = value(forward.saved_values, problem.dtype, i);
    y = problem.saved == Saved::kPreActivation ? saved_value : w * saved_value + b;
  }
  y += residual_part(problem, forward.residual, i);
  if (problem.saved == Saved::kOutputBit && y > minimum_at<double>(problem.activation))
    forward.branch[i / 8] = static_cast<uint8_t>(forward.branch[i / 8] | 1 << i % 8);
  with_activation(problem, [&](auto act) { store(forward.z, problem.dtype, i, act.forward(y)); });
}

// y from z and its branch: Newton's method, with bisection where a step would leave the interval that holds
// y.
template <class Act>
double from_branch(const Act& act, const AbnProblem& problem, double z, bool rising) {
  const double at = Branches<Act>::kMinimumAt, minimum = Branches<Act>::kMinimum;
  const Precision precision = precision_of(problem.dtype);
  if (std::isnan(z) || (rising && std::isinf(z))) return z;
  z = std::max(z, minimum - kLeastDepth * precision.epsilon * minimum);
  double low = at, high = std::max(z, 0.0) + 1;
  if (!rising) {
    z = std::min(z, -precision.smallest);
    high = at;
    for (low = at - 1; act.forward(low) < z;) low *= 2;
  }
  double y = low + (high - low) / 2;
  while (true) {
    const double off = act.forward(y) - z;
    ((off < 0) == rising ? low : high) = y;
    const double middle = low + (high - low) / 2, newton = y - off / act.derivative_at(y);
    const double next = low < newton && newton < high ? newton : middle;
    if (off == 0 || next == y || middle == low || middle == high) return y;
    y = next;
  }
}

struct Gradient {
  double dy, xhat;
};

// dy and x-hat at index i.
Gradient gradient(const AbnProblem& problem, const AbnBackward& backward, int64_t c, int64_t i) {
  const double w = parameter(backward.weight, problem, c, 1), b = parameter(backward.bias, problem, c, 0);
  const double saved_value = value(backward.saved_values, problem.dtype, i),
               dz = value(backward.dz, problem.dtype, i);
  const double s = residual_part(problem, backward.residual, i);
  Gradient result{};
  with_activation(problem, [&](auto act) {
    if (problem.saved == Saved::kOutput || problem.saved == Saved::kOutputForm1) {
      if constexpr (Invertible<decltype(act)>)
        result = {dz * act.derivative(saved_value), (act.inverse(saved_value) - s - b) / w};
      return;
    }
    if (problem.saved == Saved::kOutputBit) {
      if constexpr (InvertibleByBranch<decltype(act)>) {
        const double y = from_branch(act, problem, saved_value, backward.branch[i / 8] >> i % 8 & 1);
        result = {dz * act.derivative_at(y), (y - s - b) / w};
      }
      return;
    }
    if (problem.saved == Saved::kPreActivation) {
      result = {dz * act.derivative_at(saved_value + s), (saved_value - b) / w};
      return;
    }
    const double xhat =
        problem.saved == Saved::kInput ? (saved_value - backward.mean[c]) * backward.inv_std[c] : saved_value;
    result = {dz * act.derivative_at(w * xhat + b + s), xhat};
  });
  return result;
}

}  // namespace

void abn_statistics(const AbnProblem& problem, const void* x, double* mean, double* var) {
  const double m = static_cast<double>(problem.shape.per_channel());
  for (int64_t c = 0; c < problem.shape.c; ++c) {
    double sum = 0, squares = 0;
    for_each(problem, c, [&](int64_t i) { sum += value(x, problem.dtype, i); });
    mean[c] = sum / m;
    for_each(problem, c, [&](int64_t i) {
      const double d = value(x, problem.dtype, i) - mean[c];
      squares += d * d;
    });
    var[c] = squares / m;
  }
}

void abn_apply(const AbnProblem& problem, const AbnForward& forward) {
  for (int64_t c = 0; c < problem.shape.c; ++c)
    for_each(problem, c, [&](int64_t i) { apply_element(problem, forward, c, i); });
}

void abn_forward(const AbnProblem& problem, double eps, const AbnForward& forward,
                 const RunningStatistics& running) {
  abn_statistics(problem, forward.x, forward.mean, forward.var);
  const auto m = static_cast<double>(problem.shape.per_channel());
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    const auto move = [&](void* moved, int64_t c, double batch) {
      if (moved) move_running(static_cast<T*>(moved)[c], batch, running.momentum);
    };
    for (int64_t c = 0; c < problem.shape.c; ++c) {
      move(running.mean, c, forward.mean[c]);
      move(running.var, c, forward.var[c] * m / (m - 1));
    }
  });
  for (int64_t c = 0; c < problem.shape.c; ++c) forward.inv_std[c] = 1 / std::sqrt(forward.var[c] + eps);
  abn_apply(problem, forward);
}

void abn_recompute_output(const AbnProblem& problem, const AbnForward& forward) {
  AbnProblem plain = problem;
  plain.saved = Saved::kOutput;  // nothing is written beside z
  AbnForward from = forward;
  from.x = forward.saved_values;
  if (problem.saved == Saved::kInput) return abn_apply(plain, from);
  // From x-hat or y itself: statistics that change nothing.
  const std::vector<double> zero(static_cast<std::size_t>(problem.shape.c), 0), one(zero.size(), 1);
  from.mean = const_cast<double*>(zero.data());
  from.inv_std = const_cast<double*>(one.data());
  if (problem.saved == Saved::kPreActivation) from.weight = from.bias = nullptr;
  abn_apply(plain, from);
}

namespace {

// `gradient_at(c, i)` is the gradient at index i, of channel c.
template <class GradientAt>
void reduce(const AbnProblem& problem, const AbnBackward& backward, const GradientAt& gradient_at) {
  for (int64_t c = 0; c < problem.shape.c; ++c) {
    double dy = 0, dy_xhat = 0;
    for_each(problem, c, [&](int64_t i) {
      const Gradient g = gradient_at(c, i);
      dy += g.dy;
      dy_xhat += g.dy * g.xhat;
    });
    store(backward.sum_dy, accumulate_dtype(problem.dtype), c, dy);
    store(backward.sum_dy_xhat, accumulate_dtype(problem.dtype), c, dy_xhat);
  }
}

template <class GradientAt>
void apply_backward(const AbnProblem& problem, const AbnBackward& backward, double m,
                    const GradientAt& gradient_at) {
  const bool frozen = backward.frozen_statistics;  // a scale and a shift: x-hat plays no part
  for (int64_t c = 0; c < problem.shape.c; ++c) {
    const double scale = parameter(backward.weight, problem, c, 1) * backward.inv_std[c];
    for_each(problem, c, [&](int64_t i) {
      const Gradient g = gradient_at(c, i);
      double dx = g.dy;
      if (!frozen)
        dx -= parameter(backward.sum_dy, problem, c, 0) / m +
              g.xhat * parameter(backward.sum_dy_xhat, problem, c, 0) / m;
      // As libtorch's ReLU: the gradient of NaN passes.
      const bool hidden =
          problem.relu_residual && backward.residual && value(backward.residual, problem.dtype, i) <= 0;
      store(backward.dx, problem.dtype, i, scale * dx);
      if (backward.dresidual) store(backward.dresidual, problem.dtype, i, hidden ? 0 : g.dy);
    });
  }
  if (!backward.z) return;
  AbnForward again;
  again.saved_values = const_cast<void*>(backward.saved_values);  // read only
  again.residual = backward.residual;
  again.weight = backward.weight;
  again.bias = backward.bias;
  again.z = backward.z;
  again.mean = const_cast<double*>(backward.mean);
  again.inv_std = const_cast<double*>(backward.inv_std);
  abn_recompute_output(problem, again);
}

}  // namespace

void abn_backward_reduce(const AbnProblem& problem, const AbnBackward& backward) {
  reduce(problem, backward, [&](int64_t c, int64_t i) { return gradient(problem, backward, c, i); });
}

void abn_backward_apply(const AbnProblem& problem, const AbnBackward& backward, double m) {
  apply_backward(problem, backward, m,
                 [&](int64_t c, int64_t i) { return gradient(problem, backward, c, i); });
}

void abn_backward(const AbnProblem& problem, const AbnBackward& backward) {
  // Computed once each: bisection was half of the time of the kernels' tests.
  std::vector<Gradient> gradients(static_cast<std::size_t>(problem.shape.elements()));
  for (int64_t c = 0; c < problem.shape.c; ++c)
    for_each(problem, c, [&](int64_t i) { gradients[i] = gradient(problem, backward, c, i); });
  const auto gradient_at = [&](int64_t, int64_t i) { return gradients[i]; };
  reduce(problem, backward, gradient_at);
  apply_backward(problem, backward, static_cast<double>(problem.shape.per_channel()), gradient_at);
}

}  // namespace palimpsest::kernels::reference
