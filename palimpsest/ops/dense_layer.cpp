#include "palimpsest/ops/dense_layer.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/dense_block.h"
#include "palimpsest/ops/abn_autograd.h"
#include "palimpsest/ops/convolve_passes.h"
#include "palimpsest/ops/dtype.h"
#include "palimpsest/ops/layout.h"
#include "palimpsest/ops/running_statistics.h"
#include "palimpsest/ops/side_channels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>

namespace palimpsest::ops {
namespace {

const OptionalTensor kNoTensor;

at::Tensor dense_empty(const DenseBuffer& buffer, int64_t channels) {
  auto sizes = buffer.values.sizes().vec();
  sizes[1] = channels;
  return at::empty_strided(sizes, dense_strides(sizes, buffer.layout), buffer.values.options());
}

std::vector<double> f64_numbers(const OptionalTensor& t, int64_t count, double absent) {
  std::vector<double> result(static_cast<std::size_t>(count), absent);
  if (!t) return result;
  const at::Tensor wide = t->to(at::kDouble).contiguous();
  std::copy_n(wide.const_data_ptr<double>(), count, result.begin());
  return result;
}

at::Tensor vector_tensor(const std::vector<double>& values, const at::Tensor& like) {
  at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, like.options().dtype(at::kDouble));
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<double>());
  return t;
}

AbnTensors own_tensors(const at::Tensor& x, const NormalizationTensors& norm) {
  return {x, norm.weight, norm.bias, norm.running_mean, norm.running_var, kNoTensor};
}

/// act(norm(x)) of a tensor of the layer's own, over x where what is kept allows it.
at::Tensor normalize_own(const at::Tensor& x, const NormalizationTensors& norm, AbnOptions options,
                         bool for_backward, DenseNormKept& kept) {
  const AbnTensors tensors = own_tensors(x, norm);
  options.keep = safe_keep(options.keep, tensors);
  if (!for_backward && options.keep != Kept::kInput) options.keep = Kept::kInput;  // any activation, fresh z
  kept.keep = options.keep;
  const auto arguments = arguments_of(tensors, options, for_backward);
  AbnForwardResult r;
  if (options.keep == Kept::kInput) {
    r = call_forward(x, arguments);
    kept.kept = x;
    kept.mean = r.statistics.mean;
  } else {
    r = call_forward_(x, arguments);
    kept.kept = x;
    if (!r.z.defined()) r.z = x;
  }
  kept.side = SideBuffer::revealed(r.statistics.side);
  kept.inv_std = r.statistics.inv_std;
  kept.branch = r.statistics.branch;
  return r.z;
}

struct NormGradients {
  at::Tensor dx, z, dweight, dbias;
};

/// From the gradient of z, which is written over where it is nobody else's.
NormGradients differentiate_own(at::Tensor dz, const NormalizationTensors& norm, AbnOptions options,
                                const DenseNormKept& kept, bool need_sums, bool need_z, Layout layout) {
  const at::Tensor dense = dense_in(layout, kept.kept);
  AbnBackwardArguments a;
  options.keep = kept.keep;
  a.settings = {{},           norm.weight, norm.bias, options.activation, options.activation_param,
                options.keep, false};
  a.kept = dense;
  a.side = kept.side;
  a.inv_std = kept.inv_std;
  a.mean = kept.mean.defined() ? kept.mean : kept.inv_std;  // a stand-in: only a layer that kept x reads it
  a.branch = kept.branch;
  a.training = options.training;
  a.need_sums = need_sums;
  const bool is_z = keeps_output(options.keep);
  a.need_z = need_z && !is_z;
  AbnGradients g = ours_to_overwrite(dz, dense) ? call_backward_(std::move(dz), a) : call_backward(dz, a);
  if (is_z) g.z = dense;
  return {std::move(g.dx), std::move(g.z), std::move(g.dweight), std::move(g.dbias)};
}

/// The factors of dropout, drawn from the default generator, or from a copy of what it was.
at::Tensor dropout_factors(const at::Tensor& like, double dropout, at::Tensor& state) {
  const bool replay = state.defined();
  at::Generator generator = replay ? at::detail::createCPUGenerator() : at::detail::getDefaultCPUGenerator();
  at::Tensor factors = at::empty_like(like);
  if (replay) {
    generator.set_state(state);
  } else {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state = generator.get_state();
  }
  return factors.bernoulli_(1 - dropout, generator).div_(1 - dropout);
}

kernels::DenseProduct dense_product_of(const DenseBuffer& buffer, int64_t channels, int64_t out,
                                       const AbnOptions& o, bool pre_activation) {
  const Shape3 shape = shape3(buffer.values);
  return {shape.n,
          shape.s,
          channels,
          shape.c,
          out,
          buffer.layout,
          dtype_of("dense_block", buffer.values),
          pre_activation ? o.activation : Activation::kIdentity,
          o.activation_param};
}

at::Tensor in_type_of(const at::Tensor& t, const OptionalTensor& of) {
  return t.to(of->scalar_type());
}

}  // namespace

DenseLayerPass::Normalization DenseLayerPass::normalization(const DenseBuffer& buffer) const {
  const auto vector = [&](double value) {
    return std::vector<double>(static_cast<std::size_t>(channels_), value);
  };
  if (!options_.pre_activation) return {vector(0), vector(1), vector(1), vector(1), vector(0)};
  Normalization n;
  const AbnOptions& o = l_.options1;
  const OptionalTensor mean = o.training ? OptionalTensor(buffer.mean) : l_.norm1.running_mean,
                       var = o.training ? OptionalTensor(buffer.var) : l_.norm1.running_var;
  n.mean = f64_numbers(mean, channels_, 0);
  n.inv_std = f64_numbers(var, channels_, 1);
  n.weight = f64_numbers(l_.norm1.weight, channels_, 1);
  n.shift = f64_numbers(l_.norm1.bias, channels_, 0);
  n.scale = n.weight;
  for (std::size_t c = 0; c < n.mean.size(); ++c) {
    n.inv_std[c] = 1 / std::sqrt(n.inv_std[c] + o.eps);
    n.scale[c] *= n.inv_std[c];
  }
  return n;
}

at::Tensor DenseLayerPass::kernel1() const {
  return (precision_ ? l_.kernel1.to(precision_->storage) : l_.kernel1).contiguous();
}

DenseLayerKept DenseLayerPass::forward(DenseBuffer& buffer, bool for_backward) const {
  DenseLayerKept kept;
  const bool pre = options_.pre_activation;
  at::Tensor h = dense_empty(buffer, l_.kernel1.size(0));
  {
    const Normalization n = normalization(buffer);
    const at::Tensor kernel = kernel1();
    kernels::cpu::dense_product(dense_product_of(buffer, channels_, h.size(1), l_.options1, pre),
                                {n.mean.data(), n.scale.data(), n.shift.data()},
                                buffer.values.const_data_ptr(), kernel.const_data_ptr(),
                                h.mutable_data_ptr());
  }
  if (pre && l_.options1.training && !recomputing())
    move_running_statistics(l_.norm1.running_mean, l_.norm1.running_var, l_.options1.momentum,
                            buffer.mean.narrow(0, 0, channels_), buffer.var.narrow(0, 0, channels_),
                            static_cast<double>(buffer.per_channel()));
  at::Tensor z = pre ? normalize_own(h, l_.norm2, l_.options2, for_backward, kept.bottleneck)
                     : normalize_own(h, l_.norm1, l_.options1, for_backward, kept.bottleneck);
  at::Tensor f = convolution_forward(z, l_.kernel2, std::nullopt, l_.convolution2, precision_);
  z = at::Tensor();
  if (!pre) f = normalize_own(dense_in(buffer.layout, f), l_.norm2, l_.options2, for_backward, kept.features);
  if (options_.dropout > 0) f = f * dropout_factors(f, options_.dropout, kept.mask_state);
  put_features(buffer, channels_, dense_in(buffer.layout, f));
  // The slot holds norm2's output, unless dropout changed it.
  if (!pre && keeps_output(l_.options2.keep) && !(options_.dropout > 0)) kept.features.kept = at::Tensor();
  if (!for_backward) return {};
  return kept;
}

DenseLayerGradients DenseLayerPass::backward(const DenseBuffer& buffer, const DenseLayerKept& kept,
                                             const at::Tensor& gradient, DenseCorrections& corrections,
                                             bool to_features, const DenseLayerGradients& wanted) const {
  DenseLayerGradients result;
  const bool pre = options_.pre_activation;
  const int64_t k = growth();
  const auto& bottleneck = pre ? l_.norm2 : l_.norm1;
  const AbnOptions& bottleneck_options = pre ? l_.options2 : l_.options1;
  at::Tensor df = dense_feature_gradient(buffer, channels_, k, gradient, corrections);
  if (options_.dropout > 0) {
    at::Tensor state = kept.mask_state;
    df.mul_(dropout_factors(df, options_.dropout, state));
  }
  const bool sums2 = wanted.weight2.defined() || wanted.bias2.defined();
  if (!pre) {
    DenseNormKept features = kept.features;
    if (!features.kept.defined())
      features.kept = dense_empty(buffer, k).copy_(buffer.values.narrow(1, channels_, k));
    NormGradients g =
        differentiate_own(std::move(df), l_.norm2, l_.options2, features, sums2, false, buffer.layout);
    df = std::move(g.dx);
    if (wanted.weight2.defined()) result.weight2 = in_type_of(g.dweight, l_.norm2.weight);
    if (wanted.bias2.defined()) result.bias2 = in_type_of(g.dbias, l_.norm2.bias);
  }
  // Of z the convolution's gradient for its input needs the shape alone.
  at::Tensor dz = convolution_backward(df, kept.bottleneck.kept, l_.kernel2, l_.convolution2,
                                       {true, false, false}, precision_)
                      .input;
  const auto& wanted_weight = pre ? wanted.weight2 : wanted.weight1;
  const auto& wanted_bias = pre ? wanted.bias2 : wanted.bias1;
  dz = dense_in(buffer.layout, dz);
  NormGradients g = differentiate_own(std::move(dz), bottleneck, bottleneck_options, kept.bottleneck,
                                      wanted_weight.defined() || wanted_bias.defined(),
                                      wanted.kernel2.defined(), buffer.layout);
  if (wanted_weight.defined())
    (pre ? result.weight2 : result.weight1) = in_type_of(g.dweight, bottleneck.weight);
  if (wanted_bias.defined()) (pre ? result.bias2 : result.bias1) = in_type_of(g.dbias, bottleneck.bias);
  if (wanted.kernel2.defined())
    result.kernel2 =
        convolution_backward(df, g.z, l_.kernel2, l_.convolution2, {false, true, false}, precision_).weight;
  g.z = df = at::Tensor();

  const Normalization n = normalization(buffer);
  const at::Tensor kernel = kernel1(), dh = dense_in(buffer.layout, g.dx);
  at::Tensor dkernel;
  if (wanted.kernel1.defined()) dkernel = at::empty(l_.kernel1.sizes(), gradient.options());
  std::vector<double> sum_dy(n.mean.size()), sum_dy_x(n.mean.size());
  const bool corrects = pre && l_.options1.training && to_features;
  const bool sums = pre && (corrects || wanted.weight1.defined() || wanted.bias1.defined());
  kernels::DenseProductBackward t;
  t.x = buffer.values.const_data_ptr();
  t.w = kernel.const_data_ptr();
  t.dh = dh.const_data_ptr();
  t.per_dy = n.scale.data();
  if (to_features) t.gradient = gradient.mutable_data_ptr();
  if (dkernel.defined()) t.dw = dkernel.mutable_data_ptr();
  if (sums) t.sum_dy = sum_dy.data(), t.sum_dy_x = sum_dy_x.data();
  kernels::cpu::dense_product_backward(dense_product_of(buffer, channels_, dh.size(1), l_.options1, pre),
                                       {n.mean.data(), n.scale.data(), n.shift.data()}, t);
  if (dkernel.defined()) result.kernel1 = dkernel.to(l_.kernel1.scalar_type());
  if (corrects) {
    const auto m = static_cast<double>(buffer.per_channel());
    for (std::size_t c = 0; c < sum_dy.size(); ++c) {
      corrections.constant[c] += n.scale[c] * sum_dy[c] / m;
      corrections.per_deviation[c] += n.scale[c] * n.inv_std[c] * n.inv_std[c] * sum_dy_x[c] / m;
    }
  }
  if (pre && wanted.bias1.defined())
    result.bias1 = in_type_of(vector_tensor(sum_dy, gradient), l_.norm1.bias);
  if (pre && wanted.weight1.defined()) {
    for (std::size_t c = 0; c < sum_dy.size(); ++c) sum_dy_x[c] *= n.inv_std[c];
    result.weight1 = in_type_of(vector_tensor(sum_dy_x, gradient), l_.norm1.weight);
  }
  return result;
}

at::Tensor dense_feature_gradient(const DenseBuffer& buffer, int64_t first, int64_t count,
                                  const at::Tensor& gradient, const DenseCorrections& corrections) {
  at::Tensor df = dense_empty(buffer, count);
  const Shape3 shape = shape3(buffer.values);
  const std::vector<double> zeros(buffer.mean.defined() ? 0 : static_cast<std::size_t>(count));
  const double* const mean =
      buffer.mean.defined() ? buffer.mean.const_data_ptr<double>() + first : zeros.data();
  kernels::cpu::dense_feature_gradient(
      {shape.n, shape.s, first, count, shape.c, buffer.layout, dtype_of("dense_block", buffer.values)},
      {mean, corrections.constant.data() + first, corrections.per_deviation.data() + first},
      buffer.values.const_data_ptr(), gradient.const_data_ptr(), df.mutable_data_ptr());
  return df;
}

void put_features(DenseBuffer& buffer, int64_t first, const at::Tensor& values) {
  buffer.values.narrow(1, first, values.size(1)).copy_(values);
  if (!buffer.mean.defined()) return;
  kernels::AbnLayer layer;
  layer.shape = shape3(values);
  layer.layout = buffer.layout;
  layer.dtype = dtype_of("dense_block", values);
  kernels::cpu::abn_statistics(layer, values.const_data_ptr(), buffer.mean.mutable_data_ptr<double>() + first,
                               buffer.var.mutable_data_ptr<double>() + first);
}

}  // namespace palimpsest::ops
