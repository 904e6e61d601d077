#include "palimpsest/ops/dense_block/layer.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/ops/common/layout.h"
#include "palimpsest/ops/common/running_statistics.h"
#include "palimpsest/ops/convolution/functional.h"
#include "palimpsest/ops/invertibility/saved_channels.h"
#include "palimpsest/ops/synchronization/process_group.h"
#include "palimpsest/ops/synchronization/statistics.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <mutex>
#include <utility>

namespace palimpsest::ops::dense_block_detail {
namespace {

const OptionalTensor kNoResidual;

/// Returns act(norm(x)) for a tensor inside the layer. Writes the saved tensor over x where possible.
at::Tensor normalize_own(const at::Tensor& x, const NormalizationTensors& norm, AbnOptions options,
                         bool for_backward, SavedNorm& saved) {
  const abn_detail::Inputs inputs{x, norm, kNoResidual};
  options = abn_detail::resolved(options, x.scalar_type());
  if (!for_backward) options.saved = Saved::kInput;  // takes any activation; z is a new tensor
  const auto arguments = forward_arguments(inputs, options, for_backward);
  const bool keeps_x = options.saved == Saved::kInput;
  abn_detail::ForwardResult result = keeps_x ? forward(x, arguments) : forward_(x, arguments);
  saved.saved = options.saved;
  saved.activation = options.activation;
  saved.saved_values = x;
  saved.statistics = std::move(result.statistics);
  if (!keeps_x) saved.statistics.mean = at::Tensor();
  for (at::Tensor* hidden : {&saved.statistics.channel_values, &saved.statistics.channel_index})
    *hidden = invertibility::reveal(*hidden);
  return result.z.defined() ? result.z : x;
}

/// Returns the gradients from dz, which is overwritten if no other owner sees it.
abn_detail::Gradients differentiate_own(at::Tensor dz, const NormalizationTensors& norm,
                                        const AbnOptions& options, const SavedNorm& saved, bool need_sums,
                                        bool need_z, Layout layout) {
  const abn_detail::Statistics& statistics = saved.statistics;
  const bool is_z = saves_output(saved.saved);
  abn_detail::BackwardArguments a;
  a.settings = {{}, norm.weight, norm.bias, saved.activation, options.activation_param, saved.saved, false};
  a.saved_values = contiguous_in(layout, saved.saved_values);
  a.branch = statistics.branch;
  a.channel_values = statistics.channel_values;
  a.channel_index = statistics.channel_index;
  a.inv_std = statistics.inv_std;
  // The mean is read only if x was saved; otherwise this is a placeholder.
  a.mean = statistics.mean.defined() ? statistics.mean : statistics.inv_std;
  a.training = options.training;
  a.count = statistics.count;
  if (a.count.defined()) a.group = options.group;
  a.need_sums = need_sums;
  a.need_z = need_z && !is_z;
  abn_detail::Gradients gradients = backward_stealing(std::move(dz), a);
  if (is_z) gradients.z = a.saved_values;
  return gradients;
}

/// Returns the factors of dropout, drawn from the default generator, or drawn again from `saved`. `saved`
/// becomes the generator's state if the device `replays` it, otherwise a mask of the values that stay.
/// `like` must have the same memory order in both passes: the numbers are drawn in memory order.
at::Tensor dropout_factors(const at::Tensor& like, double dropout, at::Tensor& saved, bool replays) {
  if (!replays) {
    if (!saved.defined())
      saved = at::empty_like(like, like.options().dtype(at::kBool)).bernoulli_(1 - dropout);
    return saved.to(like.scalar_type()).div_(1 - dropout);
  }
  at::Tensor factors = at::empty_like(like);
  at::Generator own = at::detail::createCPUGenerator();
  if (saved.defined()) {
    own.set_state(saved);
    factors.bernoulli_(1 - dropout, own);
  } else {
    // One critical section: another thread may draw from the default generator at any time. The draw goes
    // through a generator of its own, because it takes the lock of its generator.
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    saved = generator.get_state();
    own.set_state(saved);
    factors.bernoulli_(1 - dropout, own);
    generator.set_state(own.get_state());
  }
  return factors.div_(1 - dropout);
}

at::Tensor in_type_of(const at::Tensor& t, const OptionalTensor& of) {
  return t.to(of->scalar_type());
}

/// Returns the gradients of norm1 and conv1 of an empty batch.
ReadGradients zero_gradients(const Read& r, const at::Tensor& gradient, const ReadWants& wants) {
  const auto vector = [&](bool wanted) {
    return wanted ? at::zeros({r.channels}, gradient.options()) : at::Tensor();
  };
  return {vector(wants.weight), vector(wants.bias),
          wants.conv_weight ? at::zeros_like(r.layer.conv1_weight) : at::Tensor()};
}

void synchronize(const Buffer& buffer, int64_t first, int64_t count, const Corrections& corrections) {
  const at::Tensor constant = corrections.constant.narrow(0, first, count),
                   per_deviation = corrections.per_deviation.narrow(0, first, count);
  at::Tensor sums = at::cat({constant, per_deviation});
  // From means over this rank's values to sums; those of an empty batch are 0 / 0.
  if (buffer.values.numel() == 0)
    sums.zero_();
  else
    sums.mul_(static_cast<double>(buffer.per_channel()));
  synchronization::all_reduce(sums, buffer.group);
  sums.div_(buffer.count);
  constant.copy_(sums.narrow(0, 0, count));
  per_deviation.copy_(sums.narrow(0, count, count));
}

}  // namespace

Read LayerPass::read(const Buffer& buffer) const {
  return {buffer, channels_, layer_, options_.pre_activation, precision_};
}

SavedLayer LayerPass::forward(Buffer& buffer, bool for_backward) const {
  SavedLayer saved;
  const bool pre = options_.pre_activation;
  const Device& device = device_for(buffer.values);
  const bool is_shared = !buffer.group.empty();
  const bool moves_running = pre && layer_.options1.training && !recomputing();
  at::Tensor h = buffer.values.numel() == 0 ? empty_channels(buffer, layer_.conv1_weight.size(0))
                                            : device.forward(read(buffer), moves_running && !is_shared);
  if (moves_running && is_shared)
    move_running_statistics(layer_.norm1.running_mean, layer_.norm1.running_var, layer_.options1.momentum,
                            buffer.mean.narrow(0, 0, channels_), buffer.var.narrow(0, 0, channels_),
                            buffer.count);
  at::Tensor z = pre ? normalize_own(h, layer_.norm2, layer_.options2, for_backward, saved.bottleneck)
                     : normalize_own(h, layer_.norm1, layer_.options1, for_backward, saved.bottleneck);
  at::Tensor f = convolution_detail::forward(z, layer_.conv2_weight, std::nullopt, layer_.conv2, precision_);
  z = at::Tensor();
  // libtorch's convolution returns the layout of its weight if that is channels-last.
  f = contiguous_in(buffer.layout, f);
  if (!pre) f = normalize_own(f, layer_.norm2, layer_.options2, for_backward, saved.features);
  if (options_.dropout > 0)
    f = f * dropout_factors(f, options_.dropout, saved.dropout, device.replays_dropout);
  put_features(buffer, channels_, contiguous_in(buffer.layout, f));
  // The slot holds norm2's output, unless dropout changed it.
  if (!pre && saves_output(saved.features.saved) && !(options_.dropout > 0))
    saved.features.saved_values = at::Tensor();
  if (!for_backward) return {};
  return saved;
}

LayerGradients LayerPass::backward(const Buffer& buffer, const SavedLayer& saved, const at::Tensor& gradient,
                                   Corrections& corrections, bool to_features,
                                   const LayerWants& wanted) const {
  LayerGradients result;
  const bool pre = options_.pre_activation;
  const int64_t k = growth();
  const auto& bottleneck = pre ? layer_.norm2 : layer_.norm1;
  const AbnOptions& bottleneck_options = pre ? layer_.options2 : layer_.options1;
  const Device& device = device_for(buffer.values);
  at::Tensor df = feature_gradient(buffer, channels_, k, gradient, corrections);
  if (options_.dropout > 0) {
    at::Tensor drawn = saved.dropout;
    df.mul_(dropout_factors(df, options_.dropout, drawn, device.replays_dropout));
  }
  if (!pre) {
    SavedNorm features = saved.features;
    if (!features.saved_values.defined())
      features.saved_values = empty_channels(buffer, k).copy_(buffer.values.narrow(1, channels_, k));
    auto g = differentiate_own(std::move(df), layer_.norm2, layer_.options2, features,
                               wanted.weight2 || wanted.bias2, false, buffer.layout);
    df = std::move(g.dx);
    if (wanted.weight2) result.weight2 = in_type_of(g.dweight, layer_.norm2.weight);
    if (wanted.bias2) result.bias2 = in_type_of(g.dbias, layer_.norm2.bias);
  }
  // The input gradient of conv2 needs the shape of z, not its values.
  at::Tensor dz = convolution_detail::backward(df, saved.bottleneck.saved_values, layer_.conv2_weight,
                                               layer_.conv2, {true, false, false}, precision_)
                      .input;
  const bool need_weight = pre ? wanted.weight2 : wanted.weight1,
             need_bias = pre ? wanted.bias2 : wanted.bias1;
  dz = contiguous_in(buffer.layout, dz);
  auto g = differentiate_own(std::move(dz), bottleneck, bottleneck_options, saved.bottleneck,
                             need_weight || need_bias, wanted.conv2_weight, buffer.layout);
  if (need_weight) (pre ? result.weight2 : result.weight1) = in_type_of(g.dweight, bottleneck.weight);
  if (need_bias) (pre ? result.bias2 : result.bias1) = in_type_of(g.dbias, bottleneck.bias);
  if (wanted.conv2_weight)
    result.conv2_weight = convolution_detail::backward(df, g.z, layer_.conv2_weight, layer_.conv2,
                                                       {false, true, false}, precision_)
                              .weight;
  g.z = df = at::Tensor();

  const ReadWants wants{to_features, pre && wanted.weight1, pre && wanted.bias1, wanted.conv1_weight};
  ReadGradients own =
      buffer.values.numel() == 0
          ? zero_gradients(read(buffer), gradient, wants)
          : device.backward(read(buffer), contiguous_in(buffer.layout, g.dx), gradient, corrections, wants);
  if (wants.weight) result.weight1 = in_type_of(own.weight, layer_.norm1.weight);
  if (wants.bias) result.bias1 = in_type_of(own.bias, layer_.norm1.bias);
  result.conv1_weight = std::move(own.conv_weight);
  return result;
}

void put_features(Buffer& buffer, int64_t first, const at::Tensor& values) {
  buffer.values.narrow(1, first, values.size(1)).copy_(values);
  if (!buffer.mean.defined()) return;
  const auto own = [&](double* mean, double* var) {
    device_for(values).statistics(values, buffer.layout, mean, var);
  };
  if (buffer.group.empty())
    return own(buffer.mean.mutable_data_ptr<double>() + first, buffer.var.mutable_data_ptr<double>() + first);
  const int64_t channels = values.size(1);
  const int64_t count = values.numel() == 0 ? 0 : values.numel() / channels;
  const synchronization::GroupStatistics s =
      synchronization::whole_batch(buffer.group, {values, channels, count, own}, /*eps=*/0);
  buffer.mean.narrow(0, first, channels).copy_(s.mean);
  buffer.var.narrow(0, first, channels).copy_(s.var);
  buffer.count = s.count;
}

at::Tensor feature_gradient(const Buffer& buffer, int64_t first, int64_t count, const at::Tensor& gradient,
                            const Corrections& corrections) {
  if (!buffer.group.empty()) synchronize(buffer, first, count, corrections);
  if (buffer.values.numel() == 0) return empty_channels(buffer, count);
  return device_for(buffer.values).feature_gradient(buffer, first, count, gradient, corrections);
}

}  // namespace palimpsest::ops::dense_block_detail
