#include "palimpsest/train/report/run_log.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace palimpsest::train {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order of the record's members; NaN and infinity become null

Json to_json(const StepRecord& r) {
  Json json = {{"type", "step"},
               {"step", r.step},
               {"epoch", r.epoch},
               {"loss", r.loss},
               {"lr", r.lr},
               {"seconds", r.seconds},
               {"data_seconds", r.data_seconds},
               {"images_per_second", r.images_per_second},
               {"eta_seconds", r.eta_seconds},
               {"kept_bytes", r.kept_bytes},
               {"current_bytes", r.current_bytes},
               {"peak_bytes", r.peak_bytes},
               {"loss_scale", r.loss_scale},
               {"skipped_steps", r.skipped_steps},
               {"abn_fallbacks", r.abn_fallbacks}};
  if (r.gradient_norm) json["gradient_norm"] = *r.gradient_norm;
  return json;
}

Json to_json(const EvaluationRecord& r) {
  Json json = {
      {"type", "evaluation"}, {"step", r.step}, {"epoch", r.epoch}, {"images", r.images}, {"loss", r.loss}};
  if (r.segmentation) {
    json["mean_iou"] = r.metrics.mean_iou;
    json["class_iou"] = r.metrics.class_iou;
    json["pixel_accuracy"] = r.metrics.pixel_accuracy;
  } else {
    json["top1"] = r.metrics.top1;
    json["top5"] = r.metrics.top5;
  }
  if (r.bad_images > 0) json["bad_images"] = r.bad_images;
  if (r.best) json["best"] = *r.best;
  return json;
}

/// Returns the members of an evaluation's line that decide which evaluation is the best.
EvaluationRecord evaluation_of(const Json& json) {
  const auto number = [&](const char* name) {  // null is a number that is not finite
    return json.contains(name) && json[name].is_number() ? json[name].get<double>()
                                                         : std::numeric_limits<double>::quiet_NaN();
  };
  EvaluationRecord record;
  record.step = json["step"].get<int64_t>();
  record.loss = number("loss");
  record.segmentation = json.contains("mean_iou");
  record.metrics.mean_iou = number("mean_iou");
  record.metrics.top1 = number("top1");
  if (json.contains("best") && json["best"].is_boolean()) record.best = json["best"].get<bool>();
  return record;
}

Json to_json(const amp::ExponentHistogram& h) {
  const auto shares = h.shares();
  const auto bars = h.bars();
  return {
      {"values", h.values()},  {"zero", shares.zero},
      {"lost", shares.lost},   {"recoverable", shares.recoverable},
      {"above", shares.above}, {"lowest", bars.exponents.empty() ? Json(nullptr) : Json(bars.exponents[0])},
      {"bars", bars.shares}};
}

/// A line of a log. Its members may be missing or of any type.
class Line {
 public:
  explicit Line(const Json& json) : json_(json) {}

  /// Returns whether the line may be a record: an object with a type and a step.
  bool is_record() const {
    return json_.is_object() && json_.contains("type") && json_["type"].is_string() &&
           json_.contains("step") && json_["step"].is_number_integer();
  }
  std::string type() const { return json_["type"].get<std::string>(); }
  void read(const char* key, double& value) const {
    if (!json_.contains(key)) return;
    value = number(json_[key]);
  }
  void read(const char* key, int64_t& value) const {
    if (json_.contains(key) && json_[key].is_number_integer()) value = json_[key].get<int64_t>();
  }
  void read(const char* key, std::vector<double>& values) const {
    if (!json_.contains(key) || !json_[key].is_array()) return;
    values.clear();
    for (const Json& value : json_[key]) values.push_back(number(value));
  }
  void read(const char* key, std::string& text) const {
    if (json_.contains(key) && json_[key].is_string()) text = json_[key].get<std::string>();
  }
  bool contains(const char* key) const { return json_.contains(key); }
  Line of(const char* key) const {
    static const Json kNothing = Json::object();
    return Line(json_.contains(key) && json_[key].is_object() ? json_[key] : kNothing);
  }

 private:
  /// null stands for a number that is not finite.
  static double number(const Json& value) {
    return value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN();
  }
  const Json& json_;
};

StepRecord step_of(const Line& line) {
  StepRecord r;
  line.read("step", r.step);
  line.read("epoch", r.epoch);
  line.read("loss", r.loss);
  line.read("lr", r.lr);
  line.read("seconds", r.seconds);
  line.read("data_seconds", r.data_seconds);
  line.read("images_per_second", r.images_per_second);
  line.read("eta_seconds", r.eta_seconds);
  line.read("kept_bytes", r.kept_bytes);
  line.read("current_bytes", r.current_bytes);
  line.read("peak_bytes", r.peak_bytes);
  line.read("loss_scale", r.loss_scale);
  line.read("skipped_steps", r.skipped_steps);
  line.read("abn_fallbacks", r.abn_fallbacks);
  return r;
}

EvaluationRecord evaluation_of(const Line& line) {
  EvaluationRecord r;
  line.read("step", r.step);
  line.read("epoch", r.epoch);
  line.read("images", r.images);
  line.read("bad_images", r.bad_images);
  line.read("loss", r.loss);
  r.segmentation = line.contains("mean_iou");
  line.read("mean_iou", r.metrics.mean_iou);
  line.read("class_iou", r.metrics.class_iou);
  line.read("pixel_accuracy", r.metrics.pixel_accuracy);
  line.read("top1", r.metrics.top1);
  line.read("top5", r.metrics.top5);
  return r;
}

amp::ExponentHistogram histogram_of(const Line& line) {
  int64_t values = 0;
  double zero = 0, lowest = 0;
  amp::ExponentHistogram::Bars bars;
  line.read("values", values);
  line.read("zero", zero);
  line.read("lowest", lowest);
  line.read("bars", bars.shares);
  for (double& share : bars.shares) {
    if (!(share >= 0 && share <= 1)) share = 0;
    const double exponent = lowest + static_cast<double>(bars.exponents.size());
    bars.exponents.push_back(std::isfinite(exponent) ? std::clamp(exponent, -1000.0, 1000.0) : 0);
  }
  if (!(zero >= 0 && zero <= 1)) zero = 0;
  return amp::ExponentHistogram::from_bars(bars, std::max<int64_t>(0, values), zero);
}

ExponentRecord exponents_of(const Line& line) {
  ExponentRecord r;
  line.read("step", r.step);
  line.read("recommended_scale", r.recommended_scale);
  if (!(r.recommended_scale > 0)) r.recommended_scale = 1;
  r.weights = histogram_of(line.of("weights"));
  r.activations = histogram_of(line.of("activations"));
  return r;
}

EndRecord end_of(const Line& line) {
  EndRecord r;
  line.read("step", r.step);
  line.read("epoch", r.epoch);
  line.read("reason", r.reason);
  return r;
}

[[noreturn]] void fail(const std::filesystem::path& path) {
  const int reason = errno;
  throw Error(ErrorKind::kOutput, fmt::format("cannot write {}: {}", path.string(), std::strerror(reason)));
}

/// Shortens the file by `bytes` if the system lets it.
void remove_end(int descriptor, std::size_t bytes) {
  struct stat file = {};
  if (::fstat(descriptor, &file) != 0) return;
  [[maybe_unused]] const int failed = ::ftruncate(descriptor, file.st_size - static_cast<off_t>(bytes));
}

}  // namespace

RunLog::RunLog(std::filesystem::path path, int64_t step) : path_(std::move(path)) {
  std::string kept;
  std::error_code ignored;  // what is wrong with the path, the write says
  if (step >= 0 && std::filesystem::exists(path_, ignored)) {
    const std::string text = io::read_file(path_);
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const Json json =
          Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                      text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, /*exceptions=*/false);
      if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) continue;
      const auto line_step = json["step"].get<int64_t>();
      if (line_step < 0 || line_step > step || (json.contains("type") && json["type"] == "end")) continue;
      kept.append(text, begin, end + 1 - begin);
      if (json.contains("type") && json["type"] == "evaluation" && line_step >= evaluated_step())
        last_evaluation_ = evaluation_of(json);
    }
  }
  io::write_file_atomically(path_, kept);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor_ < 0) fail(path_);
}

RunLog::~RunLog() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void RunLog::write_line(const std::string& line) {
  if (descriptor_ < 0) return;
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      remove_end(descriptor_, done);  // the next line must not be added to a part of this one
      errno = reason;
      fail(path_);
    }
    done += static_cast<std::size_t>(count);
  }
}

void RunLog::write(const StepRecord& record) {
  write_line(to_json(record).dump() + "\n");
}

void RunLog::write(const ExponentRecord& record) {
  const Json json = {{"type", "exponents"},
                     {"step", record.step},
                     {"recommended_scale", record.recommended_scale},
                     {"weights", to_json(record.weights)},
                     {"activations", to_json(record.activations)}};
  write_line(json.dump() + "\n");
}

void RunLog::write(const BadImageRecord& record) {
  const Json json = {{"type", "bad_image"}, {"step", record.step}, {"reason", as_utf8(record.reason)}};
  write_line(json.dump() + "\n");
}

void RunLog::write(const EndRecord& record) {
  const Json json = {
      {"type", "end"}, {"step", record.step}, {"epoch", record.epoch}, {"reason", record.reason}};
  write_line(json.dump() + "\n");
}

void RunLog::write(const EvaluationRecord& record) {
  write_line(to_json(record).dump() + "\n");
  last_evaluation_ = record;
}

LogContents read_run_log(const std::filesystem::path& path) {
  LogContents log;
  const std::string text = io::read_file(path);
  int64_t number = 0;
  for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    ++number;
    const Json json =
        Json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                    text.begin() + static_cast<std::ptrdiff_t>(end), nullptr, /*exceptions=*/false);
    const Line line(json);
    if (!line.is_record()) {
      if (log.damaged_lines++ == 0) log.first_damaged_line = number;
    } else if (line.type() == "step") {
      log.steps.push_back(step_of(line));
    } else if (line.type() == "evaluation") {
      log.evaluations.push_back(evaluation_of(line));
    } else if (line.type() == "exponents") {
      log.exponents = exponents_of(line);
    } else if (line.type() == "end") {
      log.end = end_of(line);
    }
  }
  return log;
}

}  // namespace palimpsest::train
