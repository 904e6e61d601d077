#include "palimpsest/train/report/progress.h"

#include "palimpsest/base/printable.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace palimpsest::train {
namespace {

constexpr int kBarWidth = 20;
constexpr int kAllRanks = 8;  // of the parts of a line
constexpr auto kRedraw = std::chrono::milliseconds(100);

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::string bar(int64_t step, int64_t steps) {
  const auto filled = static_cast<std::size_t>(kBarWidth * step / std::max<int64_t>(steps, 1));
  std::string text(filled, '=');
  if (filled < kBarWidth) text += '>';
  text.resize(kBarWidth, ' ');
  return "[" + text + "]";
}

/// A part of a line. A narrow terminal has the parts of the lowest ranks.
struct Part {
  int rank;
  std::string text;
};

std::vector<Part> words(const StepRecord& r, int64_t steps, int64_t epochs) {
  std::vector<Part> parts{{0, fmt::format("step {}/{}", r.step, steps)},
                          {4, fmt::format("epoch {}/{}", r.epoch, epochs)},
                          {3, fmt::format("loss {:.4f}", r.loss)},
                          {6, fmt::format("lr {:.3g}", r.lr)},
                          {2, fmt::format("{:.1f} images/s", r.images_per_second)},
                          {1, fmt::format("eta {}", duration_text(r.eta_seconds))}};
  if (r.peak_bytes > 0)
    parts.push_back(
        {7, fmt::format("memory {:.0f} MiB now, {:.0f} MiB peak", mib(r.current_bytes), mib(r.peak_bytes))});
  return parts;
}

std::string joined(const std::vector<Part>& parts, int last_rank) {
  std::string text;
  for (const Part& part : parts)
    if (part.rank <= last_rank) text.append(text.empty() ? "" : "  ").append(part.text);
  return text;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::clamp(seconds, 0.0, 1e12)));
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

int stderr_columns() {
  if (::isatty(STDERR_FILENO) == 0) return 0;
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Progress::Progress(std::ostream& out, int columns, int64_t steps, int64_t epochs)
    : out_(out), columns_(columns), steps_(steps), epochs_(epochs) {}

Progress::~Progress() {
  if (bar_open_) out_ << "\n" << std::flush;
}

void Progress::line(const std::string& text) {
  // Overwrites an open bar: returns to its start and clears the rest of the line.
  out_ << (bar_open_ ? "\r\x1b[K" : "") << text << "\n" << std::flush;
  bar_open_ = false;
}

void Progress::step(const StepRecord& record, bool logged) {
  if (columns_ == 0) {
    if (logged) line(joined(words(record, steps_, epochs_), kAllRanks));
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (bar_open_ && now - drawn_ < kRedraw && record.step != steps_) return;
  drawn_ = now;
  std::vector<Part> parts = words(record, steps_, epochs_);
  parts.insert(parts.begin(), {{8, bar(record.step, steps_)},
                               {5, fmt::format("{} %", 100 * record.step / std::max<int64_t>(steps_, 1))}});
  const auto room = static_cast<std::size_t>(columns_ - 1);  // a full last column would wrap
  std::string text = joined(parts, kAllRanks);
  for (int rank = kAllRanks; rank > 0 && text.size() > room; --rank) text = joined(parts, rank - 1);
  text.resize(std::min(text.size(), room));
  out_ << "\r" << text << "\x1b[K" << std::flush;
  bar_open_ = true;
}

void Progress::evaluation(const EvaluationRecord& record) {
  const Metrics& m = record.metrics;
  line(fmt::format("evaluation after step {}: loss {:.4f}  ", record.step, record.loss) +
       (record.segmentation ? fmt::format("mean IoU {:.2f} %  pixel accuracy {:.2f} %", 100 * m.mean_iou,
                                          100 * m.pixel_accuracy)
                            : fmt::format("top-1 {:.2f} %  top-5 {:.2f} %", 100 * m.top1, 100 * m.top5)) +
       fmt::format("  ({}{})", counted(record.images, "image"),
                   record.bad_images > 0 ? fmt::format(", {} bad left out", record.bad_images) : ""));
}

void Progress::note(const std::string& text) {
  line("note: " + text);
}

}  // namespace palimpsest::train
