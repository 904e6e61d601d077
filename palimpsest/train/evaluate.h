#pragma once

#include "palimpsest/distributed/process_group.h"
#include "palimpsest/train/batch_source.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/network.h"
#include "palimpsest/train/records.h"
#include "palimpsest/train/tensor_format.h"
#include "palimpsest/train/views.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::train {

/// Computes loss and metrics of a network over one pass of its loader (epoch 0), in eval mode and without
/// gradients. Converts the network to `format` (train/tensor_format.h). Afterwards each module is in the mode
/// that it was in. Targets (N) are labels of images, targets (N, H, W) labels of pixels. All images of a
/// batch have one size; batches may differ in size. The mean loss weighs every valid pixel (image) alike, so
/// "cross_entropy" does not depend on how the images are batched. Throws as `loss`, `MetricsAccumulator::add`
/// and the loader do, Error(kUsage) if there is no batch, and Error(kMemory).
///
/// With a `group` each of its ranks calls this with the same network and its own share of the batches, and
/// gets the record of all batches. Images and metrics are sums of whole numbers: the same bits as in one
/// process. The loss is added in rank order and differs by rounding in f64. One collective per round of
/// batches, three more at the end, and two if images could not be read. Throws Error(kUsage) if `batches` is
/// not the share of this rank, and as Group does.
EvaluationRecord evaluate(const Network& network, BatchSource& batches, const LossOptions& loss,
                          const TensorFormat& format, distributed::Group* group = nullptr);
EvaluationRecord evaluate(const Network& network, data::Loader& loader, const LossOptions& loss,
                          const TensorFormat& format, distributed::Group* group = nullptr);

/// Sees each batch of this rank, in the format of the network, with its logits, which may be coarser than the
/// images (train/network.h).
using EvaluationObserver = std::function<void(const data::Batch& batch, const at::Tensor& logits)>;

/// What an evaluation computes beyond one view of each image.
struct EvaluationOptions {
  LossOptions loss{};
  TensorFormat format{};
  /// Segmentation: the class of a pixel is that of its probability, averaged over these views.
  ViewOptions views{};
  /// Classification: the side of the ten crops whose logits are averaged; 0: the image itself.
  int64_t ten_crop = 0;
  /// Classification: counts the pairs of true and predicted class if there are at most so many classes.
  int64_t confusion_classes = 0;
  /// Segmentation: receives the predicted classes of each image, u8 (H, W) on the CPU, in the order of the
  /// batches; on each rank those of its own batches. Needs at most 256 classes.
  std::function<void(const std::string& name, const at::Tensor& classes)> labels{};
  EvaluationObserver observe{};  ///< with one view of each image
  /// Loss and counts are read at the end only, and a wrong label is an error there: the host waits for no
  /// batch. nullopt: on a GPU only. Several views of an image wait.
  std::optional<bool> reads_late{};
};

/// Does the same with several views of each image (train/views.h). If `views` is one view, metrics and loss
/// are those of the function above. With several the loss is -log of the averaged probability of the true
/// class, where a probability below the smallest normal number counts as that number; images are computed one
/// by one, and the result has the same bits for any batch. Cross-entropy needs a band of the image only;
/// bootstrapping, which ranks the pixels of an image, one number more per pixel.
/// Throws Error(kUsage) as check_views, for_each_band and ten_crop_logits do, and for views or labels with
/// images that have one label, and ten crops with labels of pixels.
EvaluationRecord evaluate(const Network& network, BatchSource& batches, const EvaluationOptions& options,
                          distributed::Group* group = nullptr);

/// Does the same as the first function, but returns nothing if `stopped` returned true after a batch; with a
/// group, on all ranks if it did so on one. Calls `observe`, if any, for each batch, and counts pairs of
/// classes up to kMostCountedClasses (train/metrics.h).
std::optional<EvaluationRecord> evaluate_unless(const std::function<bool()>& stopped, const Network& network,
                                                BatchSource& batches, const LossOptions& loss,
                                                const TensorFormat& format,
                                                distributed::Group* group = nullptr,
                                                const EvaluationObserver& observe = {},
                                                std::optional<bool> reads_late = std::nullopt);

/// Throws Error(kUsage) unless `batches` yields the share of this rank of `group`, or of the only process if
/// there is none. `what`: "the training batches".
void check_share(const BatchSource& batches, const distributed::Group* group, const std::string& what);

/// Puts a module and its children into eval mode; the destructor puts each back into the mode that it was in.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module);
  ~EvalMode();
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modes_;
};

/// Returns `loss` for these targets. The label of an image is never void, so the result for labels of images
/// ignores no class: 255 remains a class of a thousand.
LossOptions loss_for(const at::Tensor& targets, LossOptions loss);

/// Returns false if no pixel (image) has a class, or the network's outputs are NaN.
bool has_metrics(const EvaluationRecord& record);
/// Returns why an evaluation has no loss or no metrics: no pixel has a class, none counts in the loss, or the
/// network's outputs are NaN. Returns "" if it has them.
std::string doubt_of(const EvaluationRecord& record);

/// Returns "16 images of 3 x 512 x 512", for messages.
std::string describe(const at::Tensor& images);

}  // namespace palimpsest::train
