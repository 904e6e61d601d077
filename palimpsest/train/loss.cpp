#include "palimpsest/train/loss.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/ops/cuda.h"
#include "palimpsest/ops/upsampled_loss.h"
#include "palimpsest/train/common/count_ids.h"
#include "palimpsest/train/common/label_error.h"
#include "palimpsest/train/common/send.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace palimpsest::train {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Values per slab. A slab of this size stays in the second-level cache, and the number of slabs is so small
// that the calls cost nothing (1024 classes: 256 pixels each).
constexpr int64_t kSlabValues = 1 << 18;

/// Returns the values per slab. A GPU streams through its memory, so one slab holds all values.
int64_t slab_values(const at::Tensor& x) {
  return x.is_cpu() ? kSlabValues : std::max<int64_t>(x.numel(), 1);
}

/// Calls `body(first image, images, first pixel, pixels)` for slabs of (N, C, P) with at most slab_values
/// values each (or one pixel), in order.
template <class Body>
void for_each_slab(const at::Tensor& x, const Body& body) {
  const int64_t n = x.size(0), c = x.size(1), p = x.size(2), most = slab_values(x);
  const int64_t pixels = std::clamp<int64_t>(most / std::max<int64_t>(c, 1), 1, std::max<int64_t>(p, 1));
  const int64_t images = pixels < p ? 1 : std::max<int64_t>(most / std::max<int64_t>(c * p, 1), 1);
  for (int64_t i = 0; i < n; i += images)
    for (int64_t j = 0; j < p; j += pixels) body(i, std::min(images, n - i), j, std::min(pixels, p - j));
}

at::Tensor slab(const at::Tensor& tensor, int64_t i, int64_t images, int64_t j, int64_t pixels) {
  return tensor.narrow(0, i, images).narrow(-1, j, pixels);
}

/// Returns (N, C, ...) as (N, C, P); a view unless the strides forbid it. P is computed, because -1 fails for
/// tensors without elements.
at::Tensor with_pixels(const at::Tensor& logits) {
  return logits.reshape({logits.size(0), logits.size(1), c10::multiply_integers(logits.sizes().slice(2))});
}

/// Returns a mask of the hardest ceil(share * n) of the n valid pixels of each image, without a wait for the device.
at::Tensor hardest_on_device(const at::Tensor& valid, const at::Tensor& losses, double share) {
  const at::Tensor ranked = losses.masked_fill(valid.logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor order = std::get<1>(ranked.sort(/*stable=*/true, 1, /*descending=*/true));
  const at::Tensor keep = valid.sum(1, /*keepdim=*/true).to(at::kDouble).mul_(share).ceil_();
  const at::Tensor places = at::arange(valid.size(1), keep.options());
  return at::zeros_like(valid).scatter_(1, order, places.unsqueeze(0).lt(keep));
}

/// Does the same on the host, which reads n: ranking all pixels would take several times as long.
at::Tensor hardest_on_host(const at::Tensor& valid, const at::Tensor& losses, double share) {
  at::Tensor selected = at::zeros_like(valid);
  for (int64_t i = 0; i < valid.size(0); ++i) {
    const auto count = static_cast<double>(valid[i].sum().item<int64_t>());
    const auto keep = static_cast<int64_t>(std::ceil(share * count));
    if (keep == 0) continue;
    const at::Tensor ranked =
        losses[i].masked_fill(valid[i].logical_not(), -std::numeric_limits<double>::infinity());
    selected[i].index_fill_(0, std::get<1>(ranked.topk(keep, 0, /*largest=*/true, /*sorted=*/false)), true);
  }
  return selected;
}

/// Selects the pixels that count, as a mask (N, P). `losses` (N, P) holds the loss of every valid pixel.
at::Tensor select(const at::Tensor& valid, const at::Tensor& losses, const LossOptions& options) {
  if (options.kind != "bootstrap") return valid;
  const auto hardest = losses.is_cpu() ? hardest_on_host : hardest_on_device;
  at::Tensor selected = hardest(valid, losses, options.bootstrap_share);
  // Keeps probability < p. NaN passes, so that a diverged loss shows.
  if (options.bootstrap_probability < 1) {
    selected.logical_and_((losses <= -std::log(options.bootstrap_probability)).logical_not());
  }
  return selected;
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor& targets,
                            const LossOptions& options, const at::Tensor& wrong, at::Tensor* selected_count) {
    const at::Tensor x = with_pixels(logits);
    const int64_t n = x.size(0), p = x.size(2);
    const at::Tensor t = targets.reshape({n, p});
    const at::Tensor valid = t.ne(options.ignore_id).logical_and_(wrong.reshape({n, p}).logical_not());

    at::Tensor log_sum_exp = at::empty({n, p}, x.options());
    at::Tensor losses = at::empty({n, p}, x.options());
    for_each_slab(x, [&](int64_t i, int64_t images, int64_t j, int64_t pixels) {
      const at::Tensor xs = slab(x, i, images, j, pixels);
      const at::Tensor mask = slab(valid, i, images, j, pixels);
      // A void pixel or a wrong one may have any class: its loss is not used.
      const at::Tensor truth = slab(t, i, images, j, pixels).masked_fill(mask.logical_not(), 0);
      at::Tensor sums = slab(log_sum_exp, i, images, j, pixels);
      sums.copy_(xs.logsumexp(1));
      slab(losses, i, images, j, pixels).copy_(sums - xs.gather(1, truth.unsqueeze(1)).squeeze(1));
    });

    const at::Tensor selected = select(valid, losses, options);
    *selected_count = selected.sum().to(at::kDouble);
    context->save_for_backward({logits, log_sum_exp, targets, selected});
    return losses.masked_fill_(selected.logical_not(), 0).sum(at::kDouble);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "[loss] has no double backward: run backward without create_graph");
    const auto saved = context->get_saved_variables();
    const at::Tensor& logits = saved[0];
    const at::Tensor x = with_pixels(logits);
    const int64_t n = x.size(0), p = x.size(2);
    const at::Tensor& log_sum_exp = saved[1];
    const at::Tensor t = saved[2].reshape({n, p});
    const at::Tensor& selected = saved[3];
    const at::Tensor scale = gradients[0].to(x.scalar_type());

    const at::Tensor dx = at::empty_like(x);  // in the layout of the logits
    for_each_slab(x, [&](int64_t i, int64_t images, int64_t j, int64_t pixels) {
      const at::Tensor mask = slab(selected, i, images, j, pixels);
      const at::Tensor truth = slab(t, i, images, j, pixels).masked_fill(mask.logical_not(), 0).unsqueeze(1);
      const at::Tensor sums = slab(log_sum_exp, i, images, j, pixels).unsqueeze(1);
      at::Tensor d = slab(dx, i, images, j, pixels);
      at::sub_out(d, slab(x, i, images, j, pixels), sums);
      d.exp_();                                          // softmax
      d.scatter_(1, truth, d.gather(1, truth).sub_(1));  // minus one at the true class
      d.mul_(mask.to(x.scalar_type()).mul_(scale).unsqueeze(1));
    });
    return {dx.view(logits.sizes()), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void check_types(const at::Tensor& logits, const at::Tensor& targets) {
  TORCH_CHECK(
      targets.scalar_type() == at::kLong && targets.size(0) == logits.size(0) &&
          targets.size(1) >= logits.size(2) && targets.size(2) >= logits.size(3),
      "[loss] targets need type i64 and shape (N, H, W) with H >= h and W >= w for logits (N, C, h, w) of "
      "shape ",
      logits.sizes(), ", got ", targets.sizes(), " of ", targets.scalar_type());
}

void check_targets(const at::Tensor& logits, const at::Tensor& targets) {
  TORCH_CHECK(logits.dim() >= 2 && logits.is_floating_point(),
              "[loss] logits need shape (N, C, ...) and a floating-point type, got ", logits.sizes(), " of ",
              logits.scalar_type());
  std::vector<int64_t> expected = logits.sizes().vec();
  expected.erase(expected.begin() + 1);
  TORCH_CHECK(
      targets.scalar_type() == at::kLong && targets.sizes() == at::IntArrayRef(expected),
      "[loss] targets need shape ", at::IntArrayRef(expected), " and type i64 for logits of shape ",
      logits.sizes(), ", got ", targets.sizes(), " of ", targets.scalar_type(),
      logits.dim() > 2 && targets.dim() == 1
          ? ": one label per image needs a network with a classifier, and a model of 0 classes has none"
          : "");
}

bool is_weighted(const LossOptions& options) {
  return options.label_smoothing > 0 || !options.class_weights.empty();
}

void check_class_weights(const LossOptions& options, int64_t classes) {
  const auto& weights = options.class_weights;
  if (!weights.empty() && static_cast<int64_t>(weights.size()) != classes)
    throw Error(
        ErrorKind::kUsage,
        fmt::format("class_weights must have one number per class: the network has {} classes, got {} "
                    "numbers",
                    classes, weights.size()));
}

at::Tensor weights_of(const LossOptions& options, const c10::Device& device) {
  return send(at::tensor(options.class_weights, at::kDouble), device);
}

bool is_f32_or_f64(const at::Tensor& logits) {
  return logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kDouble;
}

/// Returns the label at `place` of the targets, both f64 scalars; NaN if the place is beyond them.
at::Tensor label_at(const at::Tensor& targets, const at::Tensor& place) {
  at::Tensor none = at::full_like(place, std::numeric_limits<double>::quiet_NaN());
  const auto count = static_cast<double>(targets.numel());
  if (targets.is_cpu() || count == 0) return none;  // the CPU's operator throws for a wrong one
  const at::Tensor index = place.clamp_max(count - 1).to(at::kLong).view({1});
  return at::where(place < count, targets.flatten().index_select(0, index).squeeze(0).to(at::kDouble), none);
}

SummedLoss loss_of_images(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options) {
  check_types(logits, targets);
  const bool bootstraps = options.kind == "bootstrap";
  ops::UpsampledCrossEntropyOptions o;
  o.ignore_index = options.ignore_id;
  o.checks_targets = o.mean = false;
  o.bootstrap_share = bootstraps ? options.bootstrap_share : 1;
  o.bootstrap_probability = bootstraps ? options.bootstrap_probability : 1;
  o.label_smoothing = options.label_smoothing;
  if (!options.class_weights.empty()) o.weight = weights_of(options, logits.device());
  try {
    const auto result = ops::upsampled_cross_entropy(logits, targets, o);
    return {result.loss, result.weight, label_at(targets, result.first_wrong)};
  } catch (const c10::IndexError&) {
    const int64_t classes = logits.size(1);
    const at::Tensor wrong = wrong_targets(targets, classes, options.ignore_id);
    refuse_wrong_label(first_wrong_label(targets, wrong).item<double>(), classes, options.ignore_id);
    throw;
  }
}

}  // namespace

std::vector<std::string> loss_names() {
  return {"cross_entropy", "bootstrap"};
}

void check_loss(const LossOptions& options) {
  const auto names = loss_names();
  if (std::find(names.begin(), names.end(), options.kind) == names.end())
    throw Error(ErrorKind::kUsage, unknown_name_message("loss", options.kind, names));
  const auto in_unit = [](const char* name, double value) {
    if (!(value > 0 && value <= 1))
      throw Error(ErrorKind::kUsage, fmt::format("{} must be in (0, 1], got {}", name, value));
  };
  in_unit("bootstrap_probability", options.bootstrap_probability);
  in_unit("bootstrap_share", options.bootstrap_share);
  if (!(options.label_smoothing >= 0 && options.label_smoothing < 1))
    throw Error(ErrorKind::kUsage,
                fmt::format("label_smoothing must be in [0, 1), got {}", options.label_smoothing));
  const auto& weights = options.class_weights;
  for (const double weight : weights)
    if (weight != 0 && !(weight >= ops::kLeastClassWeight && weight <= ops::kMostClassWeight))
      throw Error(ErrorKind::kUsage,
                  fmt::format("class_weights must be 0 or from 1e-30 to 1e30, got {}", weight));
  if (!weights.empty() && *std::max_element(weights.begin(), weights.end()) == 0)
    throw Error(ErrorKind::kUsage, "class_weights must not all be 0: no class would count");
}

at::Tensor expected_weight(const at::Tensor& targets, const LossOptions& options) {
  at::Tensor weight;
  if (options.class_weights.empty()) {
    weight = targets.ne(options.ignore_id).sum().to(at::kDouble);
  } else {
    const auto classes = static_cast<int64_t>(options.class_weights.size());
    const at::Tensor counted = counted_targets(targets, classes, options.ignore_id);
    weight = count_ids(at::where(counted, targets, classes), classes + 1)
                 .narrow(0, 0, classes)
                 .to(at::kDouble)
                 .mul(weights_of(options, targets.device()))
                 .sum();
  }
  return options.kind == "bootstrap" ? options.bootstrap_share * weight : weight;
}

SummedLoss summed_loss(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options) {
  check_loss(options);
  if (logits.dim() >= 2) check_class_weights(options, logits.size(1));
  const bool of_images = logits.dim() == 4 && targets.dim() == 3;
  if (of_images && ops::has_kernels_for(logits.device()) && is_f32_or_f64(logits))
    return loss_of_images(logits, targets, options);
  if (of_images && logits.sizes().slice(2) != targets.sizes().slice(1)) {
    check_types(logits, targets);
    return summed_loss(at::upsample_bilinear2d(logits, targets.sizes().slice(1), /*align_corners=*/false),
                       targets, options);
  }
  check_targets(logits, targets);
  if (is_weighted(options)) {
    if (!ops::has_kernels_for(logits.device()))
      throw Error(ErrorKind::kUsage,
                  fmt::format("label_smoothing and class_weights need kernels for the device {}, and this "
                              "program was built without them",
                              logits.device().str()));
    const at::Tensor x = with_pixels(logits);
    return loss_of_images(x.unsqueeze(-1), targets.reshape({x.size(0), x.size(2), 1}), options);
  }
  const at::Tensor wrong = wrong_targets(targets, logits.size(1), options.ignore_id);
  SummedLoss result;
  result.wrong_label = first_wrong_label(targets, wrong);
  result.sum = CrossEntropy::apply(logits, targets, options, wrong, &result.weight);
  return result;
}

at::Tensor losses_of_pixels(const at::Tensor& probabilities, const at::Tensor& targets,
                            const LossOptions& options) {
  check_class_weights(options, probabilities.size(0));
  constexpr double kSmallest = std::numeric_limits<float>::min();
  const auto losses_of = [&](const at::Tensor& p) { return p.clamp_min(kSmallest).log_().neg_(); };
  at::Tensor of_truth = losses_of(probabilities.gather(0, targets)).view({1, -1});
  if (!is_weighted(options)) return of_truth;
  const int64_t classes = probabilities.size(0);
  const at::Tensor weights = options.class_weights.empty()
                                 ? at::ones({classes}, of_truth.options())
                                 : weights_of(options, of_truth.device()).to(of_truth.scalar_type());
  const at::Tensor of_class = weights.index_select(0, targets.flatten()).view({1, -1});
  const at::Tensor of_all =
      losses_of(probabilities).view({classes, -1}).mul_(weights.view({-1, 1})).sum(0, true);
  const double e = options.label_smoothing;
  const at::Tensor loss = of_class * of_truth * (1 - e) + of_all * (e / static_cast<double>(classes));
  return at::cat({of_truth, loss, of_class});
}

SummedLoss loss_of_pixels(const at::Tensor& losses, const at::Tensor& valid, const LossOptions& options) {
  check_loss(options);
  const at::Tensor ignored = select(valid, losses[0], options).logical_not();
  const bool weighted = is_weighted(options);
  const auto sum_of = [&](const at::Tensor& row) { return row.masked_fill(ignored, 0).sum(at::kDouble); };
  SummedLoss result;
  result.sum = sum_of(losses[weighted ? 1 : 0]);
  result.weight = weighted ? sum_of(losses[2]) : ignored.logical_not().sum().to(at::kDouble);
  result.wrong_label = at::full({}, std::numeric_limits<double>::quiet_NaN(), result.sum.options());
  return result;
}

at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets, const LossOptions& options) {
  const SummedLoss of_batch = summed_loss(logits, targets, options);
  refuse_wrong_label(of_batch.wrong_label.item<double>(), logits.size(1), options.ignore_id);
  return ops::mean_loss(of_batch.sum, of_batch.weight).to(logits.scalar_type());
}

}  // namespace palimpsest::train
