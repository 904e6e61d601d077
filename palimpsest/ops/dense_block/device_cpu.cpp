#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/dense_block.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/running_statistics.h"
#include "palimpsest/ops/dense_block/device.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace palimpsest::ops::dense_block_detail {
namespace {

std::vector<double> f64_numbers(const std::optional<at::Tensor>& t, int64_t count, double absent) {
  std::vector<double> result(static_cast<std::size_t>(count), absent);
  if (!t) return result;
  const at::Tensor wide = t->to(at::kDouble).contiguous().resolve_neg();
  std::copy_n(wide.const_data_ptr<double>(), count, result.begin());
  return result;
}

at::Tensor vector_tensor(const std::vector<double>& values, const at::Tensor& like) {
  at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, like.options().dtype(at::kDouble));
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<double>());
  return t;
}

/// A normalization as the kernels read it: c values each.
struct Normalization {
  std::vector<double> mean, inv_std, weight, scale, shift;

  kernels::DenseNormalization pointers() const { return {mean.data(), scale.data(), shift.data()}; }
};

Normalization normalization_of(const Read& r) {
  const auto vector = [&](double value) {
    return std::vector<double>(static_cast<std::size_t>(r.channels), value);
  };
  if (!r.normalizes) return {vector(0), vector(1), vector(1), vector(1), vector(0)};
  Normalization n;
  const AbnOptions& o = r.layer.options1;
  const NormalizationTensors& norm = r.layer.norm1;
  const std::optional<at::Tensor> mean = o.training ? std::optional<at::Tensor>(r.buffer.mean)
                                                    : norm.running_mean,
                                  var =
                                      o.training ? std::optional<at::Tensor>(r.buffer.var) : norm.running_var;
  n.mean = f64_numbers(mean, r.channels, 0);
  n.inv_std = f64_numbers(var, r.channels, 1);
  n.weight = f64_numbers(norm.weight, r.channels, 1);
  n.shift = f64_numbers(norm.bias, r.channels, 0);
  n.scale = n.weight;
  for (std::size_t c = 0; c < n.mean.size(); ++c) {
    n.inv_std[c] = 1 / std::sqrt(n.inv_std[c] + o.eps);
    n.scale[c] *= n.inv_std[c];
  }
  return n;
}

/// Returns conv1's weight as the kernels of the dense product read it.
at::Tensor conv1_weight_of(const Read& r) {
  const at::Tensor& kernel = r.layer.conv1_weight;
  return (r.precision ? kernel.to(r.precision->storage) : kernel).contiguous().resolve_neg();
}

kernels::DenseProductProblem dense_product_of(const Read& r, int64_t out) {
  const Shape3 shape = shape3(r.buffer.values);
  return {shape.n,
          shape.s,
          r.channels,
          shape.c,
          out,
          r.buffer.layout,
          dtype_of("dense_block", r.buffer.values),
          r.normalizes ? r.layer.options1.activation : Activation::kIdentity,
          r.layer.options1.activation_param};
}

at::Tensor read_forward_on_cpu(const Read& r, bool moves_running) {
  at::Tensor h = empty_channels(r.buffer, r.layer.conv1_weight.size(0));
  {
    const Normalization n = normalization_of(r);
    const at::Tensor kernel = conv1_weight_of(r);
    kernels::cpu::dense_product(dense_product_of(r, h.size(1)), n.pointers(),
                                r.buffer.values.const_data_ptr(), kernel.const_data_ptr(),
                                h.mutable_data_ptr());
  }
  if (moves_running)
    move_running_statistics(r.layer.norm1.running_mean, r.layer.norm1.running_var, r.layer.options1.momentum,
                            r.buffer.mean.narrow(0, 0, r.channels), r.buffer.var.narrow(0, 0, r.channels),
                            static_cast<double>(r.buffer.per_channel()));
  return h;
}

ReadGradients read_backward_on_cpu(const Read& r, const at::Tensor& dh, const at::Tensor& gradient,
                                   Corrections& corrections, const ReadWants& wants) {
  ReadGradients result;
  const Normalization n = normalization_of(r);
  const at::Tensor kernel = conv1_weight_of(r);
  at::Tensor dkernel;
  if (wants.conv_weight) dkernel = at::empty(r.layer.conv1_weight.sizes(), gradient.options());
  std::vector<double> sum_dy(n.mean.size()), sum_dy_x(n.mean.size());
  const bool corrects = r.normalizes && r.layer.options1.training && wants.features;
  const bool sums = r.normalizes && (corrects || wants.weight || wants.bias);
  kernels::DenseProductBackward t;
  t.x = r.buffer.values.const_data_ptr();
  t.w = kernel.const_data_ptr();
  t.dh = dh.const_data_ptr();
  t.per_dy = n.scale.data();
  if (wants.features) t.gradient = gradient.mutable_data_ptr();
  if (dkernel.defined()) t.dw = dkernel.mutable_data_ptr();
  if (sums) t.sum_dy = sum_dy.data(), t.sum_dy_x = sum_dy_x.data();
  kernels::cpu::dense_product_backward(dense_product_of(r, dh.size(1)), n.pointers(), t);
  if (dkernel.defined()) result.conv_weight = dkernel.to(r.layer.conv1_weight.scalar_type());
  if (corrects) {
    const auto m = static_cast<double>(r.buffer.per_channel());
    auto* const constant = corrections.constant.mutable_data_ptr<double>();
    auto* const per_deviation = corrections.per_deviation.mutable_data_ptr<double>();
    for (std::size_t c = 0; c < sum_dy.size(); ++c) {
      constant[c] += n.scale[c] * sum_dy[c] / m;
      per_deviation[c] += n.scale[c] * n.inv_std[c] * n.inv_std[c] * sum_dy_x[c] / m;
    }
  }
  if (r.normalizes && wants.bias) result.bias = vector_tensor(sum_dy, gradient);
  if (r.normalizes && wants.weight) {
    for (std::size_t c = 0; c < sum_dy.size(); ++c) sum_dy_x[c] *= n.inv_std[c];
    result.weight = vector_tensor(sum_dy_x, gradient);
  }
  return result;
}

at::Tensor feature_gradient_on_cpu(const Buffer& buffer, int64_t first, int64_t count,
                                   const at::Tensor& gradient, const Corrections& corrections) {
  at::Tensor df = empty_channels(buffer, count);
  const Shape3 shape = shape3(buffer.values);
  const std::vector<double> zeros(buffer.mean.defined() ? 0 : static_cast<std::size_t>(count));
  const double* const mean =
      buffer.mean.defined() ? buffer.mean.const_data_ptr<double>() + first : zeros.data();
  kernels::cpu::dense_feature_gradient(
      {shape.n, shape.s, first, count, shape.c, buffer.layout, dtype_of("dense_block", buffer.values)},
      {mean, corrections.constant.const_data_ptr<double>() + first,
       corrections.per_deviation.const_data_ptr<double>() + first},
      buffer.values.const_data_ptr(), gradient.const_data_ptr(), df.mutable_data_ptr());
  return df;
}

void statistics_on_cpu(const at::Tensor& values, Layout layout, double* mean, double* var) {
  kernels::AbnProblem layer;
  layer.shape = shape3(values);
  layer.layout = layout;
  layer.dtype = dtype_of("dense_block", values);
  kernels::cpu::abn_statistics(layer, values.const_data_ptr(), mean, var);
}

}  // namespace

const Device& cpu_device() {
  static constexpr Device device{true, read_forward_on_cpu, read_backward_on_cpu, feature_gradient_on_cpu,
                                 statistics_on_cpu};
  return device;
}

}  // namespace palimpsest::ops::dense_block_detail
