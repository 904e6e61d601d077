#include "palimpsest/train/report/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace palimpsest::train {
namespace {

constexpr int kBarWidth = 20;
constexpr auto kRedraw = std::chrono::milliseconds(100);

std::string duration(double seconds) {
  const auto s = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

std::string words(const StepRecord& r, int64_t steps, int64_t epochs) {
  std::string text =
      fmt::format("step {}/{}  epoch {}/{}  loss {:.4f}  lr {:.3g}  {:.1f} images/s  eta {}", r.step, steps,
                  r.epoch + 1, epochs, r.loss, r.lr, r.images_per_second, duration(r.eta_seconds));
  if (r.peak_bytes > 0)
    text += fmt::format("  memory {:.0f} MiB now, {:.0f} MiB peak", mib(r.current_bytes), mib(r.peak_bytes));
  return text;
}

}  // namespace

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
    if (logged) line(words(record, steps_, epochs_));
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (bar_open_ && now - drawn_ < kRedraw && record.step != steps_) return;
  drawn_ = now;
  const auto filled = static_cast<std::size_t>(kBarWidth * record.step / std::max<int64_t>(steps_, 1));
  std::string bar(filled, '=');
  if (filled < kBarWidth) bar += '>';
  bar.resize(kBarWidth, ' ');
  std::string text = fmt::format("[{}] {} %  {}", bar, 100 * record.step / std::max<int64_t>(steps_, 1),
                                 words(record, steps_, epochs_));
  text.resize(
      std::min(text.size(), static_cast<std::size_t>(columns_ - 1)));  // a full last column would wrap
  out_ << "\r" << text << "\x1b[K" << std::flush;
  bar_open_ = true;
}

void Progress::evaluation(const EvaluationRecord& record) {
  const Metrics& m = record.metrics;
  line(fmt::format("evaluation after step {}: loss {:.4f}  ", record.step, record.loss) +
       (record.segmentation ? fmt::format("mean IoU {:.2f} %  pixel accuracy {:.2f} %", 100 * m.mean_iou,
                                          100 * m.pixel_accuracy)
                            : fmt::format("top-1 {:.2f} %  top-5 {:.2f} %", 100 * m.top1, 100 * m.top5)) +
       fmt::format("  ({} images)", record.images));
}

void Progress::note(const std::string& text) {
  line("note: " + text);
}

}  // namespace palimpsest::train
