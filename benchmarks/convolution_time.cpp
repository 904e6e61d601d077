// Claim:    a convolution with passes on our kernels (ops/convolution.h) takes less time, forward + backward,
//           than libtorch's convolution if its groups have 2 or 4 channels, if it is depthwise with a 5x5
//           window or a wider one, or if it has 3x3 windows of stride 1 over many pixels, and no more time
//           otherwise.
// Opponent: at::conv2d.
// Limit:    0.80 for groups of 2 and 4 channels; 0.50 for depthwise 5x5 and wider; 0.75 for 3x3 windows; 1.05 for all
//           other convolutions (the margin is noise).
//
// The convolutions are those of ResNet-50, a U-Net, DeepLabV3 (dilated), DenseNet-121, ResNeXt-50 (32 groups),
// RegNetY (9 and 24 groups), the in-place paper's modules (64 groups), EfficientNet-B0 (depthwise) and ConvMixer
// (9x9), in f32, channels-last; some with a bias. Both sides have the same tensors, allocator (which retains freed
// blocks) and threads; the incoming gradient is channels-last, as it is before a normalization.
// Before the timing, output and gradients are compared with libtorch's in f64.
#include "benchmarks/support.h"

#include "palimpsest/ops/convolution.h"

#include <torch/torch.h>

#include <stdexcept>

namespace palimpsest::benchmarks::convolution_time {
namespace {

constexpr double kLimitNarrow = 0.80;
constexpr double kLimitDepthwise = 0.50;  // of windows wider than 3 pixels
constexpr double kLimitWindows = 0.75;    // 3x3, stride 1, one group, 14x14 pixels or more
constexpr double kLimitOther = 1.05;
constexpr double kLargestError = 1e-5;  // relative, against f64

struct Problem {
  int64_t n, c_in, c_out, side, kernel, stride, groups, dilation = 1;
  bool has_bias = false;

  ops::ConvolutionOptions options() const {
    const int64_t padding = kernel / 2 * dilation;
    return {{stride, stride}, {padding, padding}, {dilation, dilation}, groups};
  }
};

constexpr Problem kProblems[] = {
    {16, 64, 256, 56, 1, 1, 1},
    {16, 256, 64, 56, 1, 1, 1},
    {16, 128, 512, 28, 1, 1, 1},
    {16, 512, 128, 28, 1, 1, 1},
    {16, 256, 1024, 14, 1, 1, 1},
    {16, 1024, 256, 14, 1, 1, 1},
    {16, 512, 2048, 7, 1, 1, 1},
    {16, 2048, 512, 7, 1, 1, 1},
    {16, 256, 512, 56, 1, 2, 1},
    {16, 1024, 2048, 14, 1, 2, 1},
    {16, 128, 128, 56, 3, 2, 1},
    {16, 512, 512, 14, 3, 2, 1},
    {16, 64, 64, 56, 3, 1, 1},
    {16, 128, 128, 28, 3, 1, 1},
    {16, 256, 256, 14, 3, 1, 1},
    {16, 512, 512, 7, 3, 1, 1},
    {4, 64, 64, 224, 3, 1, 1},
    {4, 256, 256, 28, 3, 1, 1, 2},
    {4, 512, 512, 28, 3, 1, 1, 4},
    {16, 128, 32, 28, 3, 1, 1},
    {16, 128, 128, 56, 3, 1, 32},
    {16, 256, 256, 56, 3, 2, 32},
    {16, 256, 256, 28, 3, 1, 32},
    {16, 512, 512, 28, 3, 2, 32},
    {16, 512, 512, 14, 3, 1, 32},
    {16, 216, 216, 28, 3, 1, 9},
    {16, 576, 576, 14, 3, 1, 24},
    {32, 128, 128, 56, 3, 1, 64},
    {32, 256, 256, 28, 3, 1, 64},
    {32, 512, 512, 14, 3, 1, 64},
    {32, 1024, 1024, 7, 3, 1, 64},
    {16, 96, 96, 112, 3, 2, 96},
    {16, 144, 144, 56, 3, 1, 144},
    {16, 144, 144, 56, 5, 2, 144},
    {16, 240, 240, 28, 5, 1, 240},
    {16, 480, 480, 14, 3, 1, 480},
    {16, 672, 672, 14, 5, 1, 672},
    {16, 1152, 1152, 7, 5, 1, 1152},
    {16, 96, 96, 56, 7, 1, 96},
    {4, 768, 768, 16, 9, 1, 768},
    {16, 240, 240, 28, 5, 1, 240, 1, true},
    {4, 64, 64, 224, 3, 1, 1, 1, true},
    {16, 256, 64, 56, 1, 1, 1, 1, true},
};

struct Values {
  at::Tensor x, weight, dout;
  std::optional<at::Tensor> bias;

  Values(const Problem& problem, at::ScalarType type) {
    torch::manual_seed(0);
    const auto make = [&](at::IntArrayRef sizes) {
      return torch::randn(sizes).to(type).contiguous(at::MemoryFormat::ChannelsLast);
    };
    x = make({problem.n, problem.c_in, problem.side, problem.side}).set_requires_grad(true);
    weight = make({problem.c_out, problem.c_in / problem.groups, problem.kernel, problem.kernel})
                 .set_requires_grad(true);
    const int64_t out = (problem.side - 1) / problem.stride + 1;
    dout = make({problem.n, problem.c_out, out, out});
    if (problem.has_bias) bias = torch::randn(problem.c_out).to(type).set_requires_grad(true);
  }
};

using Convolution = std::function<at::Tensor(const Values& v, const Problem& problem)>;

at::Tensor our_convolution(const Values& v, const Problem& problem) {
  return ops::convolution(v.x, v.weight, v.bias, problem.options());
}
at::Tensor library_convolution(const Values& v, const Problem& problem) {
  const auto o = problem.options();
  return at::conv2d(v.x, v.weight, v.bias, o.stride, o.padding, o.dilation, o.groups);
}

std::vector<at::Tensor> results(const Values& v, const Problem& problem, const Convolution& convolution) {
  const at::Tensor out = convolution(v, problem);
  std::vector<at::Tensor> wanted{v.x, v.weight};
  if (v.bias) wanted.push_back(*v.bias);
  auto all = torch::autograd::grad({out}, wanted, {v.dout});
  all.push_back(out.detach());
  return all;
}

/// Compares on two images only, because f64 is slow.
void verify(Problem problem) {
  problem.n = 2;
  const auto got = results(Values(problem, at::kFloat), problem, our_convolution);
  const auto want = results(Values(problem, at::kDouble), problem, library_convolution);
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = ((got[i].to(at::kDouble) - want[i]).norm() / want[i].norm()).item<double>();
    if (!(error <= kLargestError))
      throw std::runtime_error(
          "result " + std::to_string(i) +
          " (gradients of input, weight and bias; output) differs from libtorch in f64 by " +
          std::to_string(error) + " relative");
  }
}

Row measure(const Problem& problem, int repeats) {
  verify(problem);
  const Values v(problem, at::kFloat);
  const auto side = [&](const Convolution& convolution) {
    return [&, convolution] { return 1e3 * seconds_of([&] { results(v, problem, convolution); }); };
  };
  const auto times = interleave({side(our_convolution), side(library_convolution)}, repeats);
  Row row;
  row.claim = c10::str(
      "(", problem.n, ", ", problem.c_in, ", ", problem.side, ") to ", problem.c_out, ", ", problem.kernel,
      "x", problem.kernel, problem.stride > 1 ? c10::str(", stride ", problem.stride) : "",
      problem.dilation > 1 ? c10::str(", dilation ", problem.dilation) : "",
      problem.groups > 1 ? c10::str(", ", problem.groups, " groups") : "", problem.has_bias ? ", bias" : "");
  row.opponent_name = "conv2d";
  row.unit = "ms";
  row.measured = times[0];
  row.opponent = times[1];
  const bool depthwise = problem.groups == problem.c_in;
  const bool narrow = problem.groups > 1 && !depthwise && problem.c_in / problem.groups <= 4;
  const bool windows =
      problem.groups == 1 && problem.kernel == 3 && problem.stride == 1 && problem.side >= 14;
  row.limit = narrow                            ? kLimitNarrow
              : depthwise && problem.kernel > 3 ? kLimitDepthwise
              : windows                         ? kLimitWindows
                                                : kLimitOther;
  return row;
}

void measure_all(Report& report, const Options& options) {
  for (const Problem& problem : kProblems) report.add(measure(problem, (options.repeats + 1) / 2));
}

const Benchmark kBenchmark("convolution_time",
                           "Times convolutions with our kernels, forward + backward, against libtorch's.",
                           measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::convolution_time
