// Memory and time of DenseNet-BC (k = 12, 32 x 32, f32) over depth, for every form: the sweep of the
// memory-efficient DenseNets' paper (figures 4 and 5). It claims nothing. Exit status: 0 done, 1 a file
// cannot be written, 2 a wrong option.
//
// Saved = live bytes after the forward pass, with the loss alive, minus live bytes before it. Peak = highest
// live bytes of a step above weights, gradients and momentum. The counting allocator counts both at a batch of 64;
// for libtorch's layers at two small batches, from which a straight line extrapolates, so that they need no more
// memory than this machine has. Time: steps at a batch of 64, the forms in turn, up to 250 layers and only where the
// peak is below 16 GB; medians. `naive` and `shared_gradient` are libtorch's own layers with ReLU in place; all other
// forms save one tensor per bottleneck (`store_y`). All forms are channels-last. With --json PATH the charts
// lie beside PATH: PATH without .json, plus _memory.svg and _time.svg.
#include "benchmarks/densenet.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/svg.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

namespace palimpsest::benchmarks::densenet_depth {
namespace {

constexpr int64_t kBatch = 64, kDeepestTimed = 250;
constexpr double kRoom = 16000;  // MB
constexpr std::array<int64_t, 9> kDepths{40, 100, 160, 250, 340, 400, 502, 700, 1000};

struct Form {
  const char* name;
  DenseForm form;
};
const std::array kForms{
    Form{"naive", {nn::DenseStrategy::kNaive, nn::Strategy::kStandard}},
    Form{"shared_gradient", kLibtorchLayers},
    Form{"checkpoint", {nn::DenseStrategy::kCheckpoint, nn::Strategy::kStoreY}},
    Form{"shared", {nn::DenseStrategy::kShared, nn::Strategy::kStoreY}},
    Form{"fused", {nn::DenseStrategy::kFused, nn::Strategy::kStoreY}},
};

std::string model_of(int64_t depth) {
  return "densenet_bc" + std::to_string(depth) + "_k12";
}

/// MB.
struct Memory {
  double kept, peak;
};

Memory memory_at(const Form& form, int64_t depth, int64_t batch) {
  memory::release_retained();  // what the timings of another depth needed
  DenseTraining training({model_of(depth), batch, 32}, form.form, true);
  for (auto& p : training.model->parameters()) p.mutable_grad() = torch::zeros_like(p);  // as after a step
  memory::Meter meter;
  {
    const at::Tensor loss = training.loss();
    meter.forward_done();
    loss.backward();
  }
  return {static_cast<double>(meter.kept_bytes()) / 1e6,
          static_cast<double>(meter.peak_bytes() - meter.base_bytes()) / 1e6};
}

/// Memory at a batch of 64. That of libtorch's layers is by a straight line through two batches, which are large enough
/// that saved tensors make the peak, and not the gradients of the weights.
Memory memory_of(const Form& form, int64_t depth) {
  if (form.form.strategy != nn::Strategy::kStandard) return memory_at(form, depth, kBatch);
  constexpr int64_t kSmall = 4, kLarge = 6;  // 1000 layers keep 2.4 GB per image
  const Memory a = memory_at(form, depth, kSmall), b = memory_at(form, depth, kLarge);
  const double steps = static_cast<double>(kBatch - kLarge) / static_cast<double>(kLarge - kSmall);
  return {b.kept + (b.kept - a.kept) * steps, b.peak + (b.peak - a.peak) * steps};
}

/// Seconds of a step at a batch of 64 of each form that fits; empty for a form that does not fit.
std::vector<std::optional<Spread>> times_of(int64_t depth, const std::vector<Memory>& memory, int repeats) {
  std::vector<std::unique_ptr<DenseTraining>> trainings;
  std::vector<Side> sides;
  std::vector<std::optional<Spread>> result(kForms.size());
  std::vector<std::size_t> timed;
  for (std::size_t i = 0; i < kForms.size(); ++i) {
    if (memory[i].peak > kRoom) continue;
    trainings.push_back(
        std::make_unique<DenseTraining>(DenseInput{model_of(depth), kBatch, 32}, kForms[i].form, true));
    sides.push_back([t = trainings.back().get()] { return seconds_of([&] { t->step(); }); });
    timed.push_back(i);
  }
  const auto spreads = interleave(sides, repeats, 1);
  for (std::size_t i = 0; i < timed.size(); ++i) result[timed[i]] = spreads[i];
  return result;
}

struct Point {
  int64_t depth;
  std::vector<Memory> memory;
  std::vector<std::optional<Spread>> time;
};

std::string memory_chart(const std::vector<Point>& points) {
  io::LineChart chart;
  chart.title = "DenseNet-BC, k = 12, batch 64: peak of a training step; the paper's depths in 12 GB";
  chart.x_label = "layers";
  chart.y_label = "memory above the weights, GB";
  for (std::size_t i = 0; i < kForms.size(); ++i) {
    io::LineChart::Series fits{kForms[i].name, {}, {}};
    fits.color_of = static_cast<int>(i);
    io::LineChart::Series more{"", {}, {}};
    more.dashed = true;
    more.color_of = static_cast<int>(i);
    for (const auto& p : points) {
      const double depth = static_cast<double>(p.depth), peak = p.memory[i].peak;
      (peak <= kRoom ? fits : more).x.push_back(depth);
      (peak <= kRoom ? fits : more).y.push_back(peak / 1e3);
    }
    if (!more.x.empty() && !fits.x.empty()) {  // up to the edge of the chart
      const double x = fits.x.back(), y = fits.y.back(), edge = kRoom / 1e3;
      more = {"",        {x, x + (more.x[0] - x) * (edge - y) / (more.y[0] - y)},
              {y, edge}, false,
              true,      static_cast<int>(i)};
    }
    chart.series.push_back(std::move(fits));
    if (more.x.size() == 2) chart.series.push_back(std::move(more));
  }
  // The paper's own figures: the depth that fits in the 12 GB of its GPU.
  chart.marks = {{160, "paper: naive"}, {340, "paper: shared, LuaTorch"}, {500, "paper: shared, PyTorch"}};
  return io::to_svg(chart);
}

std::string time_chart(const std::vector<Point>& points) {
  io::BarChart chart;
  chart.title = "DenseNet-BC, k = 12, batch 64: time of a step over libtorch's own layers";
  chart.y_label = "time / shared_gradient's";
  for (const auto& p : points) {
    if (p.time.empty() || !p.time[1]) continue;
    io::BarChart::Group group{std::to_string(p.depth) + " layers", {}};
    for (std::size_t i = 0; i < kForms.size(); ++i) {
      if (!p.time[i]) continue;
      const double ratio = p.time[i]->median / p.time[1]->median;
      char label[16];
      std::snprintf(label, sizeof label, "%.2f", ratio);
      group.bars.push_back({i == 1   ? "libtorch"
                            : i == 2 ? "recomp."
                                     : kForms[i].name,
                            ratio, label, static_cast<int>(i)});
    }
    chart.groups.push_back(std::move(group));
  }
  chart.groups.push_back({"the paper, 100 layers",
                          {{"naive", 1, "1", 0}, {"Lua", 1.15, "1.15", 3}, {"PyTorch", 1.20, "1.20", 3}}});
  chart.width = 1300;
  return io::to_svg(chart);
}

nlohmann::ordered_json to_json(const std::vector<Point>& points, int repeats) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const auto& p : points)
    for (std::size_t i = 0; i < kForms.size(); ++i) {
      nlohmann::ordered_json row{{"layers", p.depth},
                                 {"form", kForms[i].name},
                                 {"kept_mb", p.memory[i].kept},
                                 {"peak_mb", p.memory[i].peak}};
      if (!p.time.empty() && p.time[i]) row["seconds"] = {p.time[i]->low, p.time[i]->median, p.time[i]->high};
      rows.push_back(std::move(row));
    }
  return {{"benchmark", "densenet_depth"},
          {"processor", processor_name()},
          {"threads", at::get_num_threads()},
          {"libtorch", TORCH_VERSION},
          {"commit", commit()},
          {"growth", 12},
          {"batch", kBatch},
          {"repeats", repeats},
          {"rows", std::move(rows)}};
}

int run_program(int argc, char** argv) {
  const Options options = parse_options(
      argc, argv,
      "Memory and time of densely connected networks of 40 to 1000 layers; it takes a quarter of an hour.");
  memory::install_counting_allocator();
  std::printf("%6s  %-16s %12s %12s %12s\n", "layers", "form", "kept MB", "peak MB", "s per step");
  std::vector<Point> points;
  for (const int64_t depth : kDepths) {
    Point p{depth, {}, {}};
    for (const Form& form : kForms) p.memory.push_back(memory_of(form, depth));
    if (depth <= kDeepestTimed)
      p.time = times_of(depth, p.memory, std::max(1, options.repeats / (depth > 100 ? 8 : 3)));
    for (std::size_t i = 0; i < kForms.size(); ++i) {
      std::printf("%6lld  %-16s %12.0f %12.0f", static_cast<long long>(depth), kForms[i].name,
                  p.memory[i].kept, p.memory[i].peak);
      if (!p.time.empty() && p.time[i]) std::printf(" %12.2f", p.time[i]->median);
      std::printf("\n");
    }
    std::fflush(stdout);
    points.push_back(std::move(p));
  }
  if (options.json.empty()) return 0;
  std::string stem = options.json;
  if (stem.ends_with(".json")) stem.resize(stem.size() - 5);
  try {
    io::write_file_atomically(options.json, to_json(points, options.repeats).dump(2) + "\n");
    io::write_file_atomically(stem + "_memory.svg", memory_chart(points));
    io::write_file_atomically(stem + "_time.svg", time_chart(points));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "densenet_depth: %s\n", error.what());
    return 1;
  }
  return 0;
}

const Benchmark kBenchmark("densenet_depth", run_program);

}  // namespace
}  // namespace palimpsest::benchmarks::densenet_depth
