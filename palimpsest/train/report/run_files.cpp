#include "palimpsest/train/report/run_files.h"

#include "palimpsest/io/image.h"
#include "palimpsest/train/report/details.h"
#include "palimpsest/train/report/figures.h"
#include "palimpsest/train/report/pictures.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <system_error>
#include <utility>

namespace palimpsest::train {
namespace {

/// The histogram of the binary exponents: TensorBoard then shows log2 |gradient| on its axis.
io::EventFile::Histogram events_of(const amp::ExponentHistogram& h) {
  io::EventFile::Histogram result;
  const auto bars = h.bars();
  for (const double bar : bars.exponents) {
    const auto count = static_cast<double>(h.count(static_cast<int>(bar)));
    result.upper_limits.push_back(bar + 1);
    result.counts.push_back(count);
    result.sum += count * bar;
    result.sum_of_squares += count * bar * bar;
  }
  if (!bars.exponents.empty()) result.low = bars.exponents.front(), result.high = bars.exponents.back() + 1;
  return result;
}

}  // namespace

RunFiles::RunFiles(std::filesystem::path folder, bool tensorboard, int64_t steps_done)
    : folder_(std::move(folder)), tensorboard_(tensorboard), steps_done_(steps_done) {
  std::error_code ignored;
  has_timeline_ = steps_done_ > 0 && std::filesystem::exists(folder_ / kStepMemoryFile, ignored);
}

void RunFiles::begin() {
  if (std::exchange(begun_, true)) return;
  if (steps_done_ == 0) {
    std::error_code ignored;  // a file that cannot be removed cannot be replaced either, which the write says
    std::filesystem::remove(folder_ / kEvaluationFile, ignored);
    std::filesystem::remove(folder_ / kStepMemoryFile, ignored);
    io::remove_event_files(folder_);
  }
  if (tensorboard_) events_ = io::EventFile(folder_, steps_done_ == 0 ? 0 : steps_done_ + 1);
}

void RunFiles::write(const StepTimeline& timeline) {
  begin();
  write_step_memory(folder_ / kStepMemoryFile, timeline);
  has_timeline_ = true;
}

void RunFiles::write(const StepRecord& r, bool logged) {
  begin();
  if (!logged || !tensorboard_) return;
  std::vector<std::pair<std::string, double>> scalars{
      {"train/loss", r.loss}, {"train/lr", r.lr}, {"train/images_per_second", r.images_per_second}};
  if (r.peak_bytes > 0)  // otherwise nothing counts the memory
    scalars.insert(scalars.end(), {{"memory/kept_MiB", static_cast<double>(r.kept_bytes) / kMiB},
                                   {"memory/peak_MiB", static_cast<double>(r.peak_bytes) / kMiB}});
  if (r.loss_scale != 1 || r.skipped_steps > 0)
    scalars.insert(scalars.end(), {{"train/loss_scale", r.loss_scale},
                                   {"train/skipped_steps", static_cast<double>(r.skipped_steps)}});
  events_.add_scalars(r.step, scalars);
}

void RunFiles::write(const EvaluationRecord& r, const EvaluationDetails& details) {
  begin();
  write_evaluation(folder_ / kEvaluationFile, details);
  if (!tensorboard_) return;
  std::vector<std::pair<std::string, double>> scalars{{"evaluation/loss", r.loss}};
  if (r.segmentation) {
    scalars.insert(scalars.end(), {{"evaluation/mean_iou", r.metrics.mean_iou},
                                   {"evaluation/pixel_accuracy", r.metrics.pixel_accuracy}});
    for (size_t c = 0; c < r.metrics.class_iou.size() && c < details.class_names.size(); ++c)
      if (std::isfinite(r.metrics.class_iou[c]))
        scalars.emplace_back("class_iou/" + details.class_names[c], r.metrics.class_iou[c]);
  } else {
    scalars.insert(scalars.end(), {{"evaluation/top1", r.metrics.top1}, {"evaluation/top5", r.metrics.top5}});
  }
  events_.add_scalars(r.step, scalars);
  for (size_t i = 0; i < details.pictures.size(); ++i) {
    const at::Tensor strip = picture_strip(details.pictures[i], details.class_colors);
    events_.add_png(r.step, fmt::format("image, truth, prediction/{}", i), io::encode_png(strip),
                    strip.size(0), strip.size(1));
  }
}

void RunFiles::write(const ExponentRecord& record) {
  begin();
  if (!tensorboard_) return;
  const auto add = [&](const char* tag, const amp::ExponentHistogram& h) {
    if (!h.bars().exponents.empty()) events_.add_histogram(record.step, tag, events_of(h));
  };
  add("gradient exponents/weights", record.weights);
  add("gradient exponents/activations", record.activations);
}

}  // namespace palimpsest::train
