#include "palimpsest/kernels/abn.h"

#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

// The truth of the tests: one plain loop per formula, all maths in double, rounded once where a value is
// stored.
namespace palimpsest::kernels::reference {
namespace {

int64_t index(const AbnProblem& layer, int64_t n, int64_t c, int64_t s) {
  const Shape3& shape = layer.shape;
  return layer.layout == Layout::kNCHW ? (n * shape.c + c) * shape.s + s : (n * shape.s + s) * shape.c + c;
}

// Calls function(i) with the index of every element of channel c.
template <class Function>
void for_each(const AbnProblem& layer, int64_t c, const Function& function) {
  for (int64_t n = 0; n < layer.shape.n; ++n)
    for (int64_t s = 0; s < layer.shape.s; ++s) function(index(layer, n, c, s));
}

double value(const void* tensor, DType dtype, int64_t i) {
  return dispatch_float(dtype,
                        [&]<class S>() { return static_cast<double>(static_cast<const S*>(tensor)[i]); });
}

void store(void* tensor, DType dtype, int64_t i, double v) {
  dispatch_float(dtype, [&]<class S>() { static_cast<S*>(tensor)[i] = static_cast<S>(v); });
}

// The type of a layer's parameters.
DType accumulate_dtype(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

double parameter(const void* vector, const AbnProblem& layer, int64_t c, double absent) {
  return vector ? value(vector, accumulate_dtype(layer.dtype), c) : absent;
}

// How deep in saturation the type of storage can tell one z from the next.
Precision precision_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {0x1p-52, 0x1p-1022};
    case DType::f32:
      return {0x1p-23, 0x1p-126};
    case DType::f16:
      return {0x1p-10, 0x1p-25};
    default:
      return {0x1p-7, 0x1p-126};
  }
}

template <class Function>
void with_activation(const AbnProblem& layer, const Function& function) {
  dispatch_activation<double>(layer.activation, {layer.activation_param, precision_of(layer.dtype)},
                              function);
}

// What is added to y.
double shortcut(const AbnProblem& layer, const void* residual, int64_t i) {
  if (!residual) return 0;
  const double r = value(residual, layer.dtype, i);
  return layer.relu_residual && r <= 0 ? 0 : r;
}

// z at index i, and what is kept of it, from x.
void apply_element(const AbnProblem& layer, const AbnForward& t, int64_t c, int64_t i) {
  const double w = parameter(t.weight, layer, c, 1), b = parameter(t.bias, layer, c, 0);
  const double xhat = (value(t.x, layer.dtype, i) - t.mean[c]) * t.inv_std[c];
  double y = w * xhat + b;
  if (layer.saved == Saved::kPreActivation || layer.saved == Saved::kNormalized) {
    store(t.saved_values, layer.dtype, i, layer.saved == Saved::kPreActivation ? y : xhat);
    // z belongs to what was kept, not to what was there before it was rounded.
    const double kept = value(t.saved_values, layer.dtype, i);
    y = layer.saved == Saved::kPreActivation ? kept : w * kept + b;
  }
  y += shortcut(layer, t.residual, i);
  if (layer.saved == Saved::kOutputBit && y > minimum_at<double>(layer.activation))
    t.branch[i / 8] = static_cast<uint8_t>(t.branch[i / 8] | 1 << i % 8);
  with_activation(layer, [&](auto act) { store(t.z, layer.dtype, i, act.forward(y)); });
}

// y from z and its branch: Newton's method, and bisection where that leaves the interval that y is known to
// lie in.
template <class Act>
double from_branch(const Act& act, const AbnProblem& layer, double z, bool rising) {
  const double at = Branches<Act>::kMinimumAt, minimum = Branches<Act>::kMinimum;
  const Precision precision = precision_of(layer.dtype);
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

// What backward is made of at index i: dy and x-hat.
Gradient gradient(const AbnProblem& layer, const AbnBackward& t, int64_t c, int64_t i) {
  const double w = parameter(t.weight, layer, c, 1), b = parameter(t.bias, layer, c, 0);
  const double kept = value(t.saved_values, layer.dtype, i), dz = value(t.dz, layer.dtype, i);
  const double s = shortcut(layer, t.residual, i);
  Gradient result{};
  with_activation(layer, [&](auto act) {
    if (layer.saved == Saved::kOutput || layer.saved == Saved::kOutputForm1) {
      if constexpr (Invertible<decltype(act)>)
        result = {dz * act.derivative(kept), (act.inverse(kept) - s - b) / w};
      return;
    }
    if (layer.saved == Saved::kOutputBit) {
      if constexpr (InvertibleByBranch<decltype(act)>) {
        const double y = from_branch(act, layer, kept, t.branch[i / 8] >> i % 8 & 1);
        result = {dz * act.derivative_at(y), (y - s - b) / w};
      }
      return;
    }
    if (layer.saved == Saved::kPreActivation) {
      result = {dz * act.derivative_at(kept + s), (kept - b) / w};
      return;
    }
    const double xhat = layer.saved == Saved::kInput ? (kept - t.mean[c]) * t.inv_std[c] : kept;
    result = {dz * act.derivative_at(w * xhat + b + s), xhat};
  });
  return result;
}

}  // namespace

void abn_statistics(const AbnProblem& layer, const void* x, double* mean, double* var) {
  const double m = static_cast<double>(layer.shape.per_channel());
  for (int64_t c = 0; c < layer.shape.c; ++c) {
    double sum = 0, squares = 0;
    for_each(layer, c, [&](int64_t i) { sum += value(x, layer.dtype, i); });
    mean[c] = sum / m;
    for_each(layer, c, [&](int64_t i) {
      const double d = value(x, layer.dtype, i) - mean[c];
      squares += d * d;
    });
    var[c] = squares / m;
  }
}

void abn_apply(const AbnProblem& layer, const AbnForward& t) {
  for (int64_t c = 0; c < layer.shape.c; ++c)
    for_each(layer, c, [&](int64_t i) { apply_element(layer, t, c, i); });
}

void abn_forward(const AbnProblem& layer, double eps, const AbnForward& t) {
  abn_statistics(layer, t.x, t.mean, t.var);
  for (int64_t c = 0; c < layer.shape.c; ++c) t.inv_std[c] = 1 / std::sqrt(t.var[c] + eps);
  abn_apply(layer, t);
}

void abn_recompute_output(const AbnProblem& layer, const AbnForward& t) {
  AbnProblem plain = layer;
  plain.saved = Saved::kOutput;  // nothing is kept now
  AbnForward from = t;
  from.x = t.saved_values;
  if (layer.saved == Saved::kInput) return abn_apply(plain, from);
  // y = weight * kept + bias from x-hat, y = kept from y: statistics that change nothing.
  const std::vector<double> zero(static_cast<std::size_t>(layer.shape.c), 0), one(zero.size(), 1);
  from.mean = const_cast<double*>(zero.data());
  from.inv_std = const_cast<double*>(one.data());
  if (layer.saved == Saved::kPreActivation) from.weight = from.bias = nullptr;
  abn_apply(plain, from);
}

namespace {

// `of(c, i)` is the gradient at index i, of channel c.
template <class Of>
void reduce(const AbnProblem& layer, const AbnBackward& t, const Of& of) {
  for (int64_t c = 0; c < layer.shape.c; ++c) {
    double dy = 0, dy_xhat = 0;
    for_each(layer, c, [&](int64_t i) {
      const Gradient g = of(c, i);
      dy += g.dy;
      dy_xhat += g.dy * g.xhat;
    });
    store(t.sum_dy, accumulate_dtype(layer.dtype), c, dy);
    store(t.sum_dy_xhat, accumulate_dtype(layer.dtype), c, dy_xhat);
  }
}

template <class Of>
void apply_backward(const AbnProblem& layer, const AbnBackward& t, double m, const Of& of) {
  const bool frozen = !t.sum_dy || !t.sum_dy_xhat;  // a scale and a shift: x-hat plays no part
  for (int64_t c = 0; c < layer.shape.c; ++c) {
    const double scale = parameter(t.weight, layer, c, 1) * t.inv_std[c];
    for_each(layer, c, [&](int64_t i) {
      const Gradient g = of(c, i);
      double dx = g.dy;
      if (!frozen)
        dx -= parameter(t.sum_dy, layer, c, 0) / m + g.xhat * parameter(t.sum_dy_xhat, layer, c, 0) / m;
      const bool hidden = layer.relu_residual && t.residual && !(value(t.residual, layer.dtype, i) > 0);
      store(t.dx, layer.dtype, i, scale * dx);
      if (t.dresidual) store(t.dresidual, layer.dtype, i, hidden ? 0 : g.dy);
    });
  }
  if (!t.z) return;
  AbnForward again;
  again.saved_values = const_cast<void*>(t.saved_values);  // read only
  again.residual = t.residual;
  again.weight = t.weight;
  again.bias = t.bias;
  again.z = t.z;
  again.mean = const_cast<double*>(t.mean);
  again.inv_std = const_cast<double*>(t.inv_std);
  abn_recompute_output(layer, again);
}

}  // namespace

void abn_backward_reduce(const AbnProblem& layer, const AbnBackward& t) {
  reduce(layer, t, [&](int64_t c, int64_t i) { return gradient(layer, t, c, i); });
}

void abn_backward_apply(const AbnProblem& layer, const AbnBackward& t, double m) {
  apply_backward(layer, t, m, [&](int64_t c, int64_t i) { return gradient(layer, t, c, i); });
}

void abn_backward(const AbnProblem& layer, const AbnBackward& t) {
  // Once each: bisection was half of the time of the kernels' tests.
  std::vector<Gradient> gradients(static_cast<std::size_t>(layer.shape.elements()));
  for (int64_t c = 0; c < layer.shape.c; ++c)
    for_each(layer, c, [&](int64_t i) { gradients[i] = gradient(layer, t, c, i); });
  const auto of = [&](int64_t, int64_t i) { return gradients[i]; };
  reduce(layer, t, of);
  apply_backward(layer, t, static_cast<double>(layer.shape.per_channel()), of);
}

}  // namespace palimpsest::kernels::reference
