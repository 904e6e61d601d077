#pragma once

#include "palimpsest/amp/precision.h"
#include "palimpsest/data/loader.h"
#include "palimpsest/distributed/process_group.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/network.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace palimpsest::train {

/// The loss of the batch of one training step, in parts, each of which has its own forward and backward pass:
/// a step of N parts has the activations of one part only. With a group it is the loss of the batches of all
/// ranks.
///
///   StepLoss loss(net, batch, options, precision, /*parts=*/4);
///   step.run_parts(sgd, 4, [&](int64_t part) { return loss.part(part); },
///                  {.change_gradients = [&] {
///                    if (loss.has_gradient_factor()) scale_gradients(sgd, loss.gradient_factor());
///                  }});
///
/// The gradients are those of the whole batch, up to rounding, if no layer uses the statistics of its batch:
/// each part is weighted with its pixels (images) that count. A normalization in training mode sees one part
/// at a time.
/// The first n % parts parts of a batch of n images have one image more than the others.
class StepLoss {
 public:
  /// `network` and `group` must outlive this object. group: null for this process alone. Throws Error(kUsage)
  /// if there are more parts than images.
  StepLoss(const Network& network, data::Batch batch, const LossOptions& options, amp::Precision precision,
           int64_t parts = 1, distributed::Group* group = nullptr);

  /// Runs the forward pass of part 0, 1, ... and returns its loss, times a factor. With the backward pass of
  /// each, the sum of the gradients, averaged over the ranks, is the gradient of mean() / gradient_factor().
  /// With a group all ranks call it, and the host waits for the device. The last part has one collective, and
  /// the first one another if there are several parts. `shared` returns what this rank adds to sums(); it is
  /// called after the last forward pass.
  at::Tensor part(int64_t index, const std::function<std::vector<double>()>& shared = {});

  /// Lets go of the batch, once the last part has had its forward pass: for a caller that moved it here, the images
  /// are in memory during the backward pass only if a layer saved them. Call it when the kept bytes are counted.
  void release_batch();

  // The results of all parts and ranks, after the forward pass of the last part.
  int64_t images() const { return images_; }
  int64_t classes() const { return classes_; }  ///< of the logits
  /// The mean loss of the batch, 0 if no pixel counts, and the first class id of this rank that is wrong, NaN
  /// if none is: f64 scalars on the device of the logits, which the host reads when it wants to wait.
  at::Tensor mean() const { return mean_; }
  at::Tensor wrong_label() const { return wrong_label_; }
  /// The weight of the pixels (images) of all parts and ranks that count, an f64 scalar on the device.
  at::Tensor weight() const { return weight_; }
  /// With a group: the sums over the ranks of the numbers of `shared`.
  const std::vector<double>& sums() const { return sums_; }
  /// Returns whether the gradients of all parts together lack a factor: in bootstrapping in parts, how many
  /// pixels count is not known before the last forward pass.
  bool has_gradient_factor() const { return parts_ > 1 && options_.kind == "bootstrap"; }
  /// The factor of the gradients of all parts together, an f64 scalar on the device.
  at::Tensor gradient_factor() const { return gradient_factor_; }

 private:
  data::Batch narrow(int64_t part) const;
  void finish(const std::function<std::vector<double>()>& shared);

  const Network& network_;
  data::Batch batch_;
  const LossOptions options_;
  const amp::Precision precision_;
  const int64_t parts_;
  int64_t parts_done_ = 0;  // their forward passes
  distributed::Group* const group_;
  // f64 scalars on the device of the logits, so that the host computes ahead of a GPU.
  at::Tensor expected_;       // weight of all parts and ranks, before their forward passes
  at::Tensor loss_, weight_;  // of the parts so far; the loss times the weight
  at::Tensor mean_, gradient_factor_, wrong_label_;
  int64_t classes_ = 0;
  int64_t images_;
  std::vector<double> sums_;
};

}  // namespace palimpsest::train
