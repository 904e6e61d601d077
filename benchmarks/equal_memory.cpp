// Claim:    in the memory of a training step with the standard layers, ours trains on more pixels: in place,
//           and more again in place with bf16. It claims this for DeepLabV3 on the paper's two networks, with
//           our loss on both sides, and once more with libtorch's interpolate and cross_entropy on both sides,
//           which need least memory image by image, both passes.
// Opponent: `standard`, libtorch's batch norm with every activation in place, f32.
// Limit:    pixels per batch over standard's: +95 % (ResNeXt-101) and +85 % (WideResNet-38) in f32, +280 %
//           with bf16. The paper: +75 % and +40 to 56 %.
//
// The peak of `standard` is counted at the paper's sizes, per GPU; a formula gives the largest whole batch and
// the largest crop, a multiple of 8 pixels, of which the peak of ours is not above it. Between operator k of a
// step and the next one, the highest live bytes, parameters, gradients and momentum included, are
//   live_k(n, s) = f_k + d_k s^2 + n (a_k s^2 + c_k)      n images of s x s pixels
// where d_k is the memory of an operator that takes the batch image by image. The peak of the step is the
// largest of them. Four sizes determine the numbers, and a fifth, the largest, checks the peak: the program
// fails if it is more than 2 % above the formula's. A step computes both losses, one after the other, as two
// operators; a row leaves the other one out. Bytes have no spread, so each size runs once.
#include "benchmarks/support.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/models/registry.h"
#include "palimpsest/train/loss.h"
#include "palimpsest/train/network.h"
#include "palimpsest/train/step.h"
#include "palimpsest/train/tensor_format.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/torch.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::benchmarks::equal_memory {
namespace {

/// A row of the paper's Table 3: the batch per GPU (it has four) and the crop of the standard layers.
struct Setting {
  const char* data;
  int64_t classes, batch, crop;
  double paper_batch, paper_crop;  // what the paper gained, per cent of pixels
};
struct Case {
  const char* network;
  double limit;  // per cent, f32
  std::array<Setting, 2> settings;
};
constexpr std::array kCases{
    Case{"deeplabv3_resnext101_preact",
         95,
         {{{"Cityscapes", 19, 4, 512, 75, 72}, {"COCO-Stuff", 91, 4, 480, 50, 56}}}},
    Case{"deeplabv3_wide_resnet38",
         85,
         {{{"Cityscapes", 19, 5, 512, 40, 56}, {"COCO-Stuff", 91, 5, 496, 40, 35}}}},
};
constexpr double kHalfLimit = 280;  // per cent, with bf16

struct Form {
  const char* name;
  nn::Strategy strategy;
  const char* precision;
};
constexpr std::array kForms{Form{"standard", nn::Strategy::kStandard, "f32"},
                            Form{"inplace_2", nn::Strategy::kInplace2, "f32"},
                            Form{"inplace_2 bf16", nn::Strategy::kInplace2, "bf16"}};

struct Size {
  int64_t batch, crop;
};
// Smaller crops take other algorithms: a dilated convolution leaves out the taps that lie outside of all pixels,
// and has other scratch memory.
constexpr std::array kFitted{Size{2, 448}, Size{3, 448}, Size{2, 512}, Size{3, 512}};
constexpr Size kChecked{3, 640};
// How much too low a peak may come out of the formula: the scratch memory of libtorch's convolutions grows in
// steps. For larger images it can shrink, so that the formula's peak is too high, which is against us.
constexpr double kLargestFlattery = 0.02;

enum class Loss { kOurs, kLibtorch };
constexpr std::array kLosses{Loss::kOurs, Loss::kLibtorch};

const char* part_of(Loss loss) {
  return loss == Loss::kOurs ? "our loss" : "libtorch's loss";
}

at::Tensor gradient_of_ours(const at::Tensor& coarse, const at::Tensor& targets) {
  train::LossOptions options;
  options.kind = "bootstrap";
  const auto leaf = coarse.detach().requires_grad_();
  train::loss(leaf, targets.to(at::kLong), options).backward();
  return leaf.grad();
}

/// libtorch's head and the paper's loss: the mean over each image's hardest quarter of the pixels. Both passes of
/// one image after the other, so that the full-size logits and gradients of one image live at a time.
at::Tensor gradient_of_libtorch(const at::Tensor& coarse, const at::Tensor& targets) {
  at::Tensor gradient = at::empty_like(coarse);
  for (int64_t n = 0; n < coarse.size(0); ++n) {
    const auto leaf = coarse.detach().narrow(0, n, 1).requires_grad_();
    auto logits = at::upsample_bilinear2d(leaf, targets.sizes().slice(1), /*align_corners=*/false);
    const auto losses =
        at::cross_entropy_loss(logits, targets.narrow(0, n, 1).to(at::kLong), {}, at::Reduction::None, 255)
            .flatten(1);
    logits.reset();
    const auto hardest = std::get<0>(losses.topk((losses.size(1) + 3) / 4, 1));
    (hardest.mean() / coarse.size(0)).backward();
    gradient.narrow(0, n, 1).copy_(leaf.grad());
  }
  return gradient;
}

/// The highest live bytes from an operator, or a node of a backward pass, to the next one.
struct OperatorPeak {
  std::string name;
  double bytes;
};

/// Notes the peak of each operator. Operators that another one calls are parts of that one.
class OperatorPeaks {
 public:
  OperatorPeaks()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&start, &end)
                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {
    peaks_.clear();
    name_ = "begin";
    depth_ = 0;
    memory::reset_peak();
  }
  ~OperatorPeaks() { at::removeCallback(handle_); }
  OperatorPeaks(const OperatorPeaks&) = delete;
  OperatorPeaks& operator=(const OperatorPeaks&) = delete;

  /// Until end_part(), all operators are one part of this name.
  void begin_part(const char* name) {
    note();
    name_ = name;
    ++depth_;
  }
  void end_part() {
    --depth_;
    note();
    name_ = "between the losses and backward";
  }

  std::vector<OperatorPeak> take() {
    note();
    return std::move(peaks_);
  }

 private:
  static void note() {
    peaks_.push_back({name_, static_cast<double>(memory::memory_stats().peak_bytes)});
    memory::reset_peak();
  }
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
    if (depth_++ == 0) {
      note();
      name_ = function.name();
    }
    return nullptr;
  }
  static void end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) { --depth_; }

  // A callback of libtorch's is a plain function.
  inline static thread_local std::vector<OperatorPeak> peaks_;
  inline static thread_local std::string name_;
  inline static thread_local int depth_ = 0;
  at::CallbackHandle handle_;
};

/// Returns the peak of each operator of a training step, with both losses.
std::vector<OperatorPeak> peaks_of(const char* network, int64_t classes, const Form& form, const Size& size) {
  torch::manual_seed(0);
  models::ModelOptions options;
  options.classes = classes;
  options.strategy = form.strategy;
  options.output_stride = 8;
  const auto model = models::make(network, options);
  const auto format = train::TensorFormat::parse("f32", /*channels_last=*/true, form.precision);
  format.convert(*model);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(1e-4).momentum(0.9));
  train::Step step(*model, {.precision = format.precision});
  std::vector<OperatorPeak> found;
  const auto run = [&](const Size& of) {
    auto images = format.convert(torch::randn({of.batch, 3, of.crop, of.crop}));
    const auto targets = torch::randint(classes, {of.batch, of.crop, of.crop}, at::kByte);
    OperatorPeaks peaks;
    step.run(sgd, [&] {
      const auto coarse = train::coarse_logits(*model, images, format.precision);
      images.reset();  // a layer holds what it needs of them
      at::Tensor gradient;
      for (const Loss kind : kLosses) {
        gradient.reset();
        peaks.begin_part(part_of(kind));
        gradient =
            kind == Loss::kOurs ? gradient_of_ours(coarse, targets) : gradient_of_libtorch(coarse, targets);
        peaks.end_part();
      }
      return at::dot(coarse.flatten(), gradient.flatten());  // has this gradient
    });
    found = peaks.take();
  };
  run({2, 64});  // allocates the momentum
  run(size);
  return found;
}

/// Whether an operator belongs to a step with this loss.
bool belongs(const std::string& name, Loss loss) {
  return std::all_of(kLosses.begin(), kLosses.end(),
                     [&](Loss other) { return other == loss || name != part_of(other); });
}

const OperatorPeak& peak_of(const std::vector<OperatorPeak>& operators, Loss loss) {
  return *std::max_element(
      operators.begin(), operators.end(), [&](const OperatorPeak& a, const OperatorPeak& b) {
        return std::pair(belongs(a.name, loss), a.bytes) < std::pair(belongs(b.name, loss), b.bytes);
      });
}

/// The peak of a step as a function of its size.
struct Formula {
  struct Part {
    std::string name;
    double fixed, fixed_square;  // of the batch
    double square, constant;     // per image

    double bytes(int64_t batch, int64_t crop) const {
      const auto n = static_cast<double>(batch), s = static_cast<double>(crop);
      return fixed + fixed_square * s * s + n * (square * s * s + constant);
    }
  };
  std::vector<Part> parts;

  const Part& largest_part(int64_t batch, int64_t crop) const {
    return *std::max_element(parts.begin(), parts.end(), [&](const Part& a, const Part& b) {
      return a.bytes(batch, crop) < b.bytes(batch, crop);
    });
  }
  double peak(int64_t batch, int64_t crop) const { return largest_part(batch, crop).bytes(batch, crop); }
};

/// Returns the formula of each of kLosses.
std::array<Formula, kLosses.size()> formulas_of(const char* network, int64_t classes, const Form& form) {
  std::array<std::vector<OperatorPeak>, kFitted.size()> live;
  for (size_t i = 0; i < live.size(); ++i) {
    live[i] = peaks_of(network, classes, form, kFitted[i]);
    if (live[i].size() != live[0].size())
      throw std::runtime_error(std::string(network) + ": " + std::to_string(live[0].size()) +
                               " operators, but " + std::to_string(live[i].size()) + " at another size");
  }
  // Kept in the order of kFitted: two batches of each of two crops.
  const auto n = static_cast<double>(kFitted[0].batch), more = static_cast<double>(kFitted[1].batch);
  const auto s0 = static_cast<double>(kFitted[0].crop), s1 = static_cast<double>(kFitted[2].crop);
  const double squares = s1 * s1 - s0 * s0;
  std::array<Formula, kLosses.size()> formulas;
  for (size_t k = 0; k < live[0].size(); ++k) {
    const auto at = [&](size_t size) { return live[size][k].bytes; };
    const double image0 = (at(1) - at(0)) / (more - n), image1 = (at(3) - at(2)) / (more - n);
    const double batch0 = at(0) - n * image0, batch1 = at(2) - n * image1;
    Formula::Part p{live[0][k].name, 0, 0, 0, 0};
    p.fixed_square = (batch1 - batch0) / squares;
    p.fixed = batch0 - p.fixed_square * s0 * s0;
    p.square = (image1 - image0) / squares;
    p.constant = image0 - p.square * s0 * s0;
    for (size_t i = 0; i < formulas.size(); ++i)
      if (belongs(p.name, kLosses[i])) formulas[i].parts.push_back(p);
  }
  return formulas;
}

/// Returns the largest multiple of `unit` for which `peak` is at most `bytes`; `peak` grows.
template <class Peak>
int64_t largest(int64_t unit, double bytes, const Peak& peak) {
  int64_t size = 0;
  while (peak(size + unit) <= bytes) size += unit;
  return size;
}

/// Per cent.
double gained(int64_t batch, int64_t crop, const Setting& over) {
  return 100 *
         (static_cast<double>(batch * crop * crop) / static_cast<double>(over.batch * over.crop * over.crop) -
          1);
}

/// A form of a network at the size of one data set: a line of the table per loss.
struct Run {
  const Case& of;
  const Setting& setting;
  const Form& form;

  bool is_standard() const { return form.strategy == nn::Strategy::kStandard; }
  double limit() const {
    if (is_standard()) return 0;
    return std::string(form.precision) == "f32" ? of.limit : kHalfLimit;
  }
  /// The runs that share it are compared.
  std::string comparison() const { return std::string(of.network) + " " + setting.data; }
};

/// Returns all runs: those of the standard layers before the others, and 16 bits last, which take long on a
/// processor without instructions for them.
std::vector<Run> runs_in_order() {
  std::vector<Run> runs;
  for (size_t i = 0; i < kCases[0].settings.size(); ++i)
    for (const char* precision : {"f32", "bf16"})
      for (const Case& c : kCases)
        for (const Form& form : kForms)
          if (std::string(form.precision) == precision) runs.push_back({c, c.settings[i], form});
  return runs;
}

/// What is found of a run with one loss.
struct Found {
  OperatorPeak peak;            // at the paper's size
  std::optional<double> error;  // of the formula's peak at kChecked, as a share of the counted one
  int64_t largest_batch, largest_crop;
};

using PerLoss = std::array<nlohmann::ordered_json, kLosses.size()>;

nlohmann::ordered_json row_of(const Run& run, Loss loss, const Found& found, double memory) {
  const Setting& s = run.setting;
  const bool pass = gained(found.largest_batch, s.crop, s) >= run.limit() &&
                    gained(s.batch, found.largest_crop, s) >= run.limit() &&
                    -found.error.value_or(0) <= kLargestFlattery;
  return {{"network", run.of.network},
          {"data", s.data},
          {"classes", s.classes},
          {"loss", loss == Loss::kOurs ? "ours" : "libtorch"},
          {"form", run.form.name},
          {"batch", s.batch},
          {"crop", s.crop},
          {"peak", found.peak.bytes},
          {"peak_at", found.peak.name},
          {"error", found.error ? nlohmann::ordered_json(*found.error) : nullptr},
          {"memory", memory},
          {"largest_batch", found.largest_batch},
          {"largest_crop", found.largest_crop},
          {"paper_batch_gain", s.paper_batch},
          {"paper_crop_gain", s.paper_crop},
          {"limit", run.limit()},
          {"processor", processor_name()},
          {"threads", at::get_num_threads()},
          {"commit", commit()},
          {"pass", pass}};
}

PerLoss count_standard(const Run& run) {
  const Setting& s = run.setting;
  const auto peaks = peaks_of(run.of.network, s.classes, run.form, {s.batch, s.crop});
  PerLoss rows;
  for (size_t i = 0; i < kLosses.size(); ++i) {
    const OperatorPeak& peak = peak_of(peaks, kLosses[i]);
    rows[i] = row_of(run, kLosses[i], {peak, std::nullopt, s.batch, s.crop}, peak.bytes);
  }
  return rows;
}

/// `memory`: the peak of the standard layers with each loss.
PerLoss fit_ours(const Run& run, const std::array<double, kLosses.size()>& memory) {
  const Setting& s = run.setting;
  const auto formulas = formulas_of(run.of.network, s.classes, run.form);
  const auto checked = peaks_of(run.of.network, s.classes, run.form, kChecked);
  PerLoss rows;
  for (size_t i = 0; i < kLosses.size(); ++i) {
    const Formula& f = formulas[i];
    const Found found{{f.largest_part(s.batch, s.crop).name, f.peak(s.batch, s.crop)},
                      f.peak(kChecked.batch, kChecked.crop) / peak_of(checked, kLosses[i]).bytes - 1,
                      largest(1, memory[i], [&](int64_t n) { return f.peak(n, s.crop); }),
                      largest(8, memory[i], [&](int64_t crop) { return f.peak(s.batch, crop); })};
    rows[i] = row_of(run, kLosses[i], found, memory[i]);
  }
  return rows;
}

void print(const Setting& s, const nlohmann::ordered_json& row) {
  const auto most = row["largest_batch"].get<int64_t>(), side = row["largest_crop"].get<int64_t>();
  std::printf("%-28s %-10s %-12s %-15s %8.2f %3lld %+7.1f %% %4lld %+6.1f %% %+7.0f %%",
              row["network"].get<std::string>().c_str(), s.data,
              row["loss"] == "ours" ? "ours" : "libtorch's", row["form"].get<std::string>().c_str(),
              row["peak"].get<double>() / 1e9, static_cast<long long>(most), gained(most, s.crop, s),
              static_cast<long long>(side), gained(s.batch, side, s), row["limit"].get<double>());
  if (row["error"].is_null()) {
    std::printf(" %9s", "counted");
  } else {
    std::printf(" %+7.2f %%", 100 * row["error"].get<double>());
  }
  std::printf("%s\n", row["pass"].get<bool>() ? "" : "  FAIL");
  std::fflush(stdout);
}

/// The JSON file, which has each run as soon as it is measured: a program that was cut short goes on, at the same
/// commit and on the same processor with as many threads, on which scratch memory depends.
class Results {
 public:
  explicit Results(std::string path) : path_(std::move(path)) {
    if (path_.empty() || !std::filesystem::exists(path_)) return;
    const auto before = nlohmann::ordered_json::parse(io::read_file(path_));
    if (before.value("complete", true)) return;
    auto same = head();
    for (const auto& [name, value] : same.items())
      if (before.value(name, nlohmann::ordered_json()) != value)
        throw std::runtime_error(path_ + " was begun with another " + name +
                                 ": remove it, or name another file");
    rows_ = before.at("rows");
    for (const auto& row : rows_)
      if (row.at("processor") != processor_name() || row.at("threads") != at::get_num_threads() ||
          row.at("commit") != commit())
        throw std::runtime_error(path_ + " was begun on " + row.at("processor").get<std::string>() +
                                 " with " + row.at("threads").dump() + " threads at commit " +
                                 row.at("commit").get<std::string>() + ": remove it, or name another file");
  }

  /// Returns the rows of a run that an earlier program measured.
  std::optional<PerLoss> find(const Run& run) const {
    PerLoss found;
    size_t count = 0;
    for (const auto& row : rows_)
      if (row["network"] == run.of.network && row["data"] == run.setting.data && row["form"] == run.form.name)
        found.at(count++) = row;
    return count == found.size() ? std::optional(found) : std::nullopt;
  }
  void add(const PerLoss& rows) {
    for (const auto& row : rows) rows_.push_back(row);
    write(/*complete=*/false);
  }
  bool pass() const {
    return std::all_of(rows_.begin(), rows_.end(),
                       [](const auto& row) { return row["pass"].template get<bool>(); });
  }
  void write(bool complete) const {
    if (path_.empty()) return;
    auto json = head();
    json["rows"] = rows_;
    json["complete"] = complete;
    json["pass"] = pass();
    io::write_file_atomically(path_, json.dump(2) + "\n");
  }

 private:
  static nlohmann::ordered_json head() {
    auto fitted = nlohmann::ordered_json::array();
    for (const Size& size : kFitted) fitted.push_back({size.batch, size.crop});
    return {{"benchmark", "equal_memory"},
            {"libtorch", TORCH_VERSION},
            {"fitted", std::move(fitted)},
            {"checked", {kChecked.batch, kChecked.crop}}};
  }

  std::string path_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

int run_program(int argc, char** argv) {
  const Options options = parse_options(argc, argv,
                                        "Counts the pixels that fit into the memory of the standard layers. "
                                        "It takes half an hour or more on two cores; "
                                        "with the same JSON file it goes on where it was cut short.");
  memory::install_counting_allocator();
  try {
    Results results(options.json);
    std::printf("%-28s %-10s %-12s %-15s %8s %12s %12s %9s %9s\n", "network", "data", "loss", "form",
                "peak GB", "fixed crop", "fixed batch", "limit", "error");
    std::map<std::string, std::array<double, kLosses.size()>> memory;
    for (const Run& run : runs_in_order()) {
      auto& standard = memory[run.comparison()];
      auto rows = results.find(run);
      if (!rows) {
        rows = run.is_standard() ? count_standard(run) : fit_ours(run, standard);
        results.add(*rows);
      }
      for (size_t i = 0; i < rows->size(); ++i) {
        const auto& row = (*rows)[i];
        standard[i] = row.at("memory").get<double>();
        print(run.setting, row);
      }
    }
    results.write(/*complete=*/true);
    std::printf("%s\n", results.pass() ? "every claim holds" : "a claim FAILS");
    return results.pass() || !options.check ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "equal_memory: %s\n", error.what());
    return 1;
  }
}

const Benchmark kBenchmark("equal_memory", run_program);

}  // namespace
}  // namespace palimpsest::benchmarks::equal_memory
