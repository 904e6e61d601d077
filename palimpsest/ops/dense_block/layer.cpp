#include "palimpsest/ops/dense_block/layer.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/ops/abn/autograd.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/convolution/functional.h"
#include "palimpsest/ops/invertibility/saved_channels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include <mutex>
#include <utility>

namespace palimpsest::ops {
namespace {

const OptionalTensor kNoTensor;

AbnTensors own_tensors(const at::Tensor& x, const NormalizationTensors& norm) {
  return {x, norm.weight, norm.bias, norm.running_mean, norm.running_var, kNoTensor};
}

/// act(norm(x)) of a tensor of the layer's own, over x where what is kept allows it.
at::Tensor normalize_own(const at::Tensor& x, const NormalizationTensors& norm, AbnOptions options,
                         bool for_backward, DenseNormKept& kept) {
  const AbnTensors tensors = own_tensors(x, norm);
  options.keep = safe_keep(options.keep, tensors);
  if (!for_backward && options.keep != Saved::kInput)
    options.keep = Saved::kInput;  // any activation, fresh z
  kept.keep = options.keep;
  const auto arguments = arguments_of(tensors, options, for_backward);
  AbnForwardResult r;
  if (options.keep == Saved::kInput) {
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
  const bool is_z = saves_output(options.keep);
  a.need_z = need_z && !is_z;
  AbnGradients g = ours_to_overwrite(dz, dense) ? call_backward_(std::move(dz), a) : call_backward(dz, a);
  if (is_z) g.z = dense;
  return {std::move(g.dx), std::move(g.z), std::move(g.dweight), std::move(g.dbias)};
}

/// The factors of dropout, drawn from the default generator; or those drawn before, made again from what
/// `kept` was given then: the generator's state if the device `replays` it, else which of the values stay.
at::Tensor dropout_factors(const at::Tensor& like, double dropout, at::Tensor& kept, bool replays) {
  if (!replays) {
    if (!kept.defined()) kept = at::empty_like(like, like.options().dtype(at::kBool)).bernoulli_(1 - dropout);
    return kept.to(like.scalar_type()).div_(1 - dropout);
  }
  const bool replay = kept.defined();
  at::Generator generator = replay ? at::detail::createCPUGenerator() : at::detail::getDefaultCPUGenerator();
  at::Tensor factors = at::empty_like(like);
  if (replay) {
    generator.set_state(kept);
  } else {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    kept = generator.get_state();
  }
  return factors.bernoulli_(1 - dropout, generator).div_(1 - dropout);
}

at::Tensor in_type_of(const at::Tensor& t, const OptionalTensor& of) {
  return t.to(of->scalar_type());
}

}  // namespace

DenseRead DenseLayerPass::read(const DenseBuffer& buffer) const {
  return {buffer, channels_, l_, options_.pre_activation, precision_};
}

DenseLayerKept DenseLayerPass::forward(DenseBuffer& buffer, bool for_backward) const {
  DenseLayerKept kept;
  const bool pre = options_.pre_activation;
  const DenseDeviceKernels& device = dense_device_kernels(buffer.values.device().type());
  at::Tensor h = device.forward(read(buffer), pre && l_.options1.training && !recomputing());
  at::Tensor z = pre ? normalize_own(h, l_.norm2, l_.options2, for_backward, kept.bottleneck)
                     : normalize_own(h, l_.norm1, l_.options1, for_backward, kept.bottleneck);
  at::Tensor f = convolution_forward(z, l_.kernel2, std::nullopt, l_.convolution2, precision_);
  z = at::Tensor();
  if (!pre) f = normalize_own(dense_in(buffer.layout, f), l_.norm2, l_.options2, for_backward, kept.features);
  if (options_.dropout > 0)
    f = f * dropout_factors(f, options_.dropout, kept.dropout, device.replays_dropout);
  put_features(buffer, channels_, dense_in(buffer.layout, f));
  // The slot holds norm2's output, unless dropout changed it.
  if (!pre && saves_output(l_.options2.keep) && !(options_.dropout > 0)) kept.features.kept = at::Tensor();
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
  const DenseDeviceKernels& device = dense_device_kernels(buffer.values.device().type());
  at::Tensor df = device.feature_gradient(buffer, channels_, k, gradient, corrections);
  if (options_.dropout > 0) {
    at::Tensor drawn = kept.dropout;
    df.mul_(dropout_factors(df, options_.dropout, drawn, device.replays_dropout));
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

  const DenseReadWants wants{to_features, pre && wanted.weight1.defined(), pre && wanted.bias1.defined(),
                             wanted.kernel1.defined()};
  DenseReadGradients own =
      device.backward(read(buffer), dense_in(buffer.layout, g.dx), gradient, corrections, wants);
  if (wants.weight) result.weight1 = in_type_of(own.weight, l_.norm1.weight);
  if (wants.bias) result.bias1 = in_type_of(own.bias, l_.norm1.bias);
  result.kernel1 = std::move(own.kernel);
  return result;
}

void put_features(DenseBuffer& buffer, int64_t first, const at::Tensor& values) {
  buffer.values.narrow(1, first, values.size(1)).copy_(values);
  if (buffer.mean.defined()) dense_device_kernels(values.device().type()).statistics(buffer, first, values);
}

}  // namespace palimpsest::ops
