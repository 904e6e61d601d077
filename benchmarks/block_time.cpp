// Claim:    a normalization + leaky ReLU + convolution block, forward + backward, takes no longer under any
//           strategy than under `standard`.
// Opponent: `standard`, libtorch's own layers with the activation in place.
// Limit:    1.00 for inplace_2 and store_y; 1.012 for checkpoint and checkpoint_normalized, for which the
//           paper reports 1.01 to 1.02.
//
// The blocks are those of the four modules of ResNeXt-101, batch 32: (C, H) = (128, 56) (256, 28) (512, 14)
// (1024, 7), each with a 1x1 convolution to 2C channels and with a 3x3 convolution in 64 groups;
// channels-last, because libtorch is faster in it. Both sides run in training mode with running statistics,
// on the same allocator (which retains freed blocks) and threads. The input is made again outside the timer,
// because the strategies may overwrite it. A side runs four times in a row, as in the paper, and the first
// run does not count. Source of the setting: Rota Bulo, Porzi, Kontschieder, CVPR 2018, section 4.4.
#include "benchmarks/support.h"

#include "palimpsest/nn/batch_norm_act.h"

#include <torch/torch.h>

namespace palimpsest::benchmarks::block_time {
namespace {

constexpr nn::Strategy kStrategies[] = {nn::Strategy::kInplace2, nn::Strategy::kStoreY,
                                        nn::Strategy::kCheckpoint, nn::Strategy::kCheckpointNormalized};

struct Block {
  int64_t channels, side, kernel, groups;
};

torch::nn::Conv2d convolution(const Block& b) {
  torch::manual_seed(1);
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(b.channels, b.kernel == 1 ? 2 * b.channels : b.channels, b.kernel)
          .padding(b.kernel / 2)
          .groups(b.groups)
          .bias(false));
  conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  return conv;
}

Side side(const at::Tensor& input, const at::Tensor& dout, const Block& b, nn::Strategy strategy) {
  nn::Norm norm(b.channels, nn::NormOptions{strategy});
  torch::nn::Conv2d conv = convolution(b);
  return [=]() mutable {
    const std::vector<at::Tensor> wanted{input, norm->weight, norm->bias, conv->weight};
    at::Tensor x = input + 0;
    return 1e3 * seconds_of([&] {
             const at::Tensor out = norm->forward_into(std::exchange(x, {}), conv);
             torch::autograd::grad({out}, wanted, {dout});
           });
  };
}

void measure(const Block& b, int repeats, Report& report) {
  torch::manual_seed(0);
  const at::Tensor input = torch::randn({32, b.channels, b.side, b.side})
                               .contiguous(at::MemoryFormat::ChannelsLast)
                               .set_requires_grad(true);
  at::Tensor dout;
  {
    const torch::NoGradGuard no_grad;
    dout = torch::ones_like(convolution(b)->forward(input));
  }
  std::vector<Side> sides{side(input, dout, b, nn::Strategy::kStandard)};
  for (const auto strategy : kStrategies) sides.push_back(side(input, dout, b, strategy));
  const auto times = interleave(sides, (repeats + 2) / 3, /*warm_up=*/1, /*in_a_row=*/4);
  for (std::size_t i = 0; i < std::size(kStrategies); ++i) {
    Row row;
    row.claim = c10::str("(", b.channels, ", ", b.side, ") ", b.kernel, "x", b.kernel,
                         b.groups > 1 ? " grouped " : " ", nn::to_string(kStrategies[i]));
    row.opponent_name = "standard";
    row.unit = "ms";
    row.opponent = times[0];
    row.measured = times[i + 1];
    row.limit = i < 2 ? 1.0 : 1.012;
    report.add(row);
  }
}

void measure_all(Report& report, const Options& options) {
  for (const int64_t kernel : {1, 3})
    for (const auto& [channels, side] :
         {std::pair<int64_t, int64_t>{128, 56}, {256, 28}, {512, 14}, {1024, 7}})
      measure({channels, side, kernel, kernel == 1 ? 1 : 64}, options.repeats, report);
}

const Benchmark kBenchmark("block_time",
                           "Times a normalization + activation + convolution block under every strategy.",
                           measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::block_time
