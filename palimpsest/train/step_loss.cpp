#include "palimpsest/train/step_loss.h"

#include "palimpsest/ops/upsampled_loss.h"
#include "palimpsest/train/common/require.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace palimpsest::train {

StepLoss::StepLoss(const Network& network, data::Batch batch, const LossOptions& options,
                   amp::Precision precision, int64_t parts, distributed::Group* group)
    : network_(network),
      batch_(std::move(batch)),
      options_(options),
      precision_(precision),
      parts_(parts),
      group_(group),
      images_(batch_.images.size(0)) {
  require(parts >= 1 && parts <= images_,
          fmt::format("a batch needs at least one image per part{}, got {} images for {} parts (accumulate)",
                      group ? " on each process" : "", images_, parts));
}

data::Batch StepLoss::narrow(int64_t part) const {
  const int64_t images = batch_.images.size(0), each = images / parts_, larger = images % parts_;
  const int64_t first = part * each + std::min(part, larger), size = each + (part < larger ? 1 : 0);
  return {batch_.images.narrow(0, first, size), batch_.targets.narrow(0, first, size), {}};
}

at::Tensor StepLoss::part(int64_t index, const std::function<std::vector<double>()>& shared) {
  if (parts_ > 1 && index == 0) {
    expected_ = expected_weight(batch_.targets, options_);
    if (group_)
      expected_ = at::full_like(expected_, group_->sum(expected_.item<double>(), "the pixels of the step"));
  }
  const data::Batch part = parts_ > 1 ? narrow(index) : batch_;
  const at::Tensor logits = coarse_logits(network_, part.images, precision_);
  const SummedLoss loss = summed_loss(logits, part.targets, options_);
  parts_done_ = index + 1;
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  if (index == 0) {
    classes_ = logits.size(1);
    loss_ = loss.sum.detach();
    weight_ = loss.weight;
    wrong_label_ = loss.wrong_label;
  } else {
    loss_ = loss_ + loss.sum.detach();
    weight_ = weight_ + loss.weight;
    wrong_label_ = at::where(wrong_label_.isnan(), loss.wrong_label, wrong_label_);
  }
  if (parts_ == 1 && !group_) {
    const at::Tensor mean = ops::mean_loss(loss.sum, loss.weight);
    mean_ = mean.detach();
    return mean.to(type);
  }
  if (index == parts_ - 1) finish(shared);
  // Averages over the ranks divide by their number.
  const double ranks = group_ ? group_->size() : 1;
  return ops::mean_loss(loss.sum * ranks, expected_).to(type);
}

void StepLoss::release_batch() {
  if (parts_done_ == parts_) batch_ = {};
}

void StepLoss::finish(const std::function<std::vector<double>()>& shared) {
  if (group_) {
    std::vector<double> mine{loss_.item<double>(), weight_.item<double>(), static_cast<double>(images_)};
    if (shared)
      for (const double number : shared()) mine.push_back(number);
    const auto all = group_->sum(std::span<const double>(mine), "the loss");
    loss_ = at::full_like(loss_, all[0]);
    weight_ = at::full_like(weight_, all[1]);
    images_ = static_cast<int64_t>(all[2]);
    sums_.assign(all.begin() + 3, all.end());
  }
  if (parts_ == 1) expected_ = weight_;
  mean_ = ops::mean_loss(loss_, weight_);
  gradient_factor_ = ops::mean_loss(expected_, weight_);
}

}  // namespace palimpsest::train
