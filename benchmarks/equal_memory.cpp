// Claim:    in the memory of a training step with the standard layers, ours trains on more pixels: in place,
//           and more again in place with bf16. It claims this for DeepLabV3 on the paper's two networks, with
//           our loss on both sides, and once more with libtorch's interpolate and cross_entropy on both sides.
// Opponent: `standard`, libtorch's batch norm with every activation in place, f32.
// Limit:    pixels per batch over standard's: +95 % (ResNeXt-101) and +85 % (WideResNet-38) in f32, +280 %
//           with bf16. The paper: +75 % and +40 to 56 %.
//
// Between operator k of a step and the next one, the highest live bytes, parameters, gradients and momentum
// included, are
//   live_k(n, s) = fixed_k + n (a_k s^2 + b_k s + c_k)      n images of s x s pixels
// The peak of the step is the largest of them. Four sizes determine the numbers, and a fifth, the largest,
// checks the peak: the program fails if the formula is off by more than 1 %. It then gives the peak of
// `standard` at the paper's sizes, per GPU, and the largest whole batch and the largest crop, a multiple of 8
// pixels, whose peak is not above it. Bytes have no spread, so each size runs once.
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
#include <cmath>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
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
  double pixels() const { return static_cast<double>(batch * crop * crop); }
};
// Smaller crops take other algorithms: a dilated convolution leaves out the taps that lie outside of all
// pixels, and has other scratch memory.
constexpr std::array kFitted{Size{2, 448}, Size{3, 448}, Size{2, 480}, Size{2, 512}};
constexpr Size kChecked{3, 544};
constexpr double kLargestError = 0.01;

/// libtorch's head and the paper's loss: the mean over each image's hardest quarter of the pixels.
at::Tensor libtorch_loss(const at::Tensor& coarse, const at::Tensor& targets) {
  const auto size = targets.sizes().slice(1);
  const auto losses = at::cross_entropy_loss(at::upsample_bilinear2d(coarse, size, /*align_corners=*/false),
                                             targets, {}, at::Reduction::None, 255)
                          .flatten(1);
  return std::get<0>(losses.topk((losses.size(1) + 3) / 4, 1)).mean();
}

/// Notes the highest live bytes from each operator, or node of a backward pass, to the next one. Operators that
/// another one calls are parts of that one.
class OperatorPeaks {
 public:
  OperatorPeaks()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&start, &end)
                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {
    bytes_.clear();
    depth_ = 0;
    memory::reset_peak();
  }
  ~OperatorPeaks() { at::removeCallback(handle_); }
  OperatorPeaks(const OperatorPeaks&) = delete;
  OperatorPeaks& operator=(const OperatorPeaks&) = delete;

  std::vector<double> take() {
    note();
    return std::move(bytes_);
  }

 private:
  static void note() {
    bytes_.push_back(static_cast<double>(memory::memory_stats().peak_bytes));
    memory::reset_peak();
  }
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& /*function*/) {
    if (depth_++ == 0) note();
    return nullptr;
  }
  static void end(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) { --depth_; }

  // A callback of libtorch's is a plain function.
  inline static thread_local std::vector<double> bytes_;
  inline static thread_local int depth_ = 0;
  at::CallbackHandle handle_;
};

/// Returns the highest live bytes between the operators of a training step.
std::vector<double> peaks_of(const char* network, int64_t classes, const Form& form, bool our_loss,
                             const Size& size) {
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
  train::LossOptions loss;
  loss.kind = "bootstrap";
  std::vector<double> bytes;
  const auto run = [&](const Size& of) {
    const auto images = format.convert(torch::randn({of.batch, 3, of.crop, of.crop}));
    const auto targets = torch::randint(classes, {of.batch, of.crop, of.crop});
    OperatorPeaks peaks;
    step.run(sgd, [&] {
      const auto coarse = train::coarse_logits(*model, images, format.precision);
      return our_loss ? train::loss(coarse, targets, loss) : libtorch_loss(coarse, targets);
    });
    bytes = peaks.take();
  };
  run({2, 64});  // allocates the momentum
  run(size);
  return bytes;
}

double largest_of(const std::vector<double>& values) {
  return *std::max_element(values.begin(), values.end());
}

/// The peak of a step as a function of its size.
struct Formula {
  struct Part {
    double fixed, square, linear, constant;
  };
  std::vector<Part> parts;
  double error = 0;  // of the peak at kChecked, as a share of the measured one

  double peak(int64_t batch, int64_t crop) const {
    const auto n = static_cast<double>(batch), s = static_cast<double>(crop);
    double most = 0;
    for (const Part& p : parts)
      most = std::max(most, p.fixed + n * ((p.square * s + p.linear) * s + p.constant));
    return most;
  }
};

Formula formula_of(const char* network, int64_t classes, const Form& form, bool our_loss) {
  std::array<std::vector<double>, kFitted.size()> live;
  for (size_t i = 0; i < live.size(); ++i) {
    live[i] = peaks_of(network, classes, form, our_loss, kFitted[i]);
    if (live[i].size() != live[0].size())
      throw std::runtime_error(std::string(network) + ": " + std::to_string(live[0].size()) +
                               " operators, but " + std::to_string(live[i].size()) + " at another size");
  }
  // Kept in the order of kFitted: the second size differs from the first in its batch only, the others in
  // their crops only.
  const auto n = static_cast<double>(kFitted[0].batch), more = static_cast<double>(kFitted[1].batch);
  const auto s0 = static_cast<double>(kFitted[0].crop), s1 = static_cast<double>(kFitted[2].crop),
             s2 = static_cast<double>(kFitted[3].crop);
  Formula f;
  for (size_t k = 0; k < live[0].size(); ++k) {
    const double per_image = (live[1][k] - live[0][k]) / (more - n);
    const double first = (live[2][k] - live[0][k]) / n / (s1 - s0),
                 second = (live[3][k] - live[2][k]) / n / (s2 - s1);
    Formula::Part p{};
    p.fixed = live[0][k] - n * per_image;
    p.square = (second - first) / (s2 - s0);
    p.linear = first - p.square * (s0 + s1);
    p.constant = per_image - (p.square * s0 + p.linear) * s0;
    f.parts.push_back(p);
  }
  const double checked = largest_of(peaks_of(network, classes, form, our_loss, kChecked));
  f.error = f.peak(kChecked.batch, kChecked.crop) / checked - 1;
  return f;
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

int run_program(int argc, char** argv) {
  const Options options = parse_options(
      argc, argv,
      "Counts the pixels that fit into the memory of the standard layers; it takes some minutes.");
  memory::install_counting_allocator();
  std::printf("%-28s %-10s %-12s %-15s %8s %12s %12s %9s %9s\n", "network", "data", "loss", "form", "peak GB",
              "fixed crop", "fixed batch", "limit", "error");
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  bool pass = true;
  for (size_t i = 0; i < kCases[0].settings.size(); ++i)
    for (const Case& c : kCases)
      for (const bool our_loss : {true, false}) {
        const Setting& s = c.settings[i];
        double memory = 0;
        for (const Form& form : kForms) {
          const Formula f = formula_of(c.network, s.classes, form, our_loss);
          const bool standard = form.strategy == nn::Strategy::kStandard;
          if (standard) memory = f.peak(s.batch, s.crop);
          const int64_t most = largest(1, memory, [&](int64_t n) { return f.peak(n, s.crop); });
          const int64_t side = largest(8, memory, [&](int64_t crop) { return f.peak(s.batch, crop); });
          const double by_batch = gained(most, s.crop, s), by_crop = gained(s.batch, side, s);
          const double limit = standard ? 0 : std::string(form.precision) == "f32" ? c.limit : kHalfLimit;
          const bool holds = by_batch >= limit && by_crop >= limit && std::abs(f.error) <= kLargestError;
          pass = pass && holds;
          std::printf("%-28s %-10s %-12s %-15s %8.2f %3lld %+7.1f %% %4lld %+6.1f %% %+7.0f %% %+7.2f %%%s\n",
                      c.network, s.data, our_loss ? "ours" : "libtorch's", form.name,
                      f.peak(s.batch, s.crop) / 1e9, static_cast<long long>(most), by_batch,
                      static_cast<long long>(side), by_crop, limit, 100 * f.error, holds ? "" : "  FAIL");
          std::fflush(stdout);
          rows.push_back({{"network", c.network},
                          {"data", s.data},
                          {"classes", s.classes},
                          {"loss", our_loss ? "ours" : "libtorch"},
                          {"form", form.name},
                          {"batch", s.batch},
                          {"crop", s.crop},
                          {"peak", f.peak(s.batch, s.crop)},
                          {"error", f.error},
                          {"memory", memory},
                          {"largest_batch", most},
                          {"largest_crop", side},
                          {"paper_batch_gain", s.paper_batch},
                          {"paper_crop_gain", s.paper_crop},
                          {"limit", limit},
                          {"pass", holds}});
        }
      }
  std::printf("%s\n", pass ? "every claim holds" : "a claim FAILS");
  if (!options.json.empty()) {
    try {
      const nlohmann::ordered_json json{{"benchmark", "equal_memory"},      {"processor", processor_name()},
                                        {"threads", at::get_num_threads()}, {"libtorch", TORCH_VERSION},
                                        {"rows", std::move(rows)},          {"pass", pass}};
      io::write_file_atomically(options.json, json.dump(2) + "\n");
    } catch (const std::exception& error) {
      std::fprintf(stderr, "equal_memory: %s\n", error.what());
      return 1;
    }
  }
  return pass || !options.check ? 0 : 1;
}

const Benchmark kBenchmark("equal_memory", run_program);

}  // namespace
}  // namespace palimpsest::benchmarks::equal_memory
