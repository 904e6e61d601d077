// Claim: a convolution of which some passes run on kernels of ours (ops/convolution.h) takes, forward +
// backward, at most 0.80 of libtorch's time for groups of 2 and 4 channels and 1.05 (no more than noise) for
// all others.
//
// The convolutions of ResNet-50, ResNeXt-50 (32 groups) and the paper's modules (64 groups), batch 16 (32 of
// the last), f32, channels-last. Both sides: the same tensors, allocator (which retains freed blocks) and
// threads; the incoming gradient is channels-last, as a normalization hands it over. Before anything is
// timed, output and gradients are compared with libtorch's in f64.
#include "benchmarks/support.h"

#include "palimpsest/ops/convolution.h"

#include <torch/torch.h>

#include <stdexcept>

namespace palimpsest::benchmarks::convolution_time {
namespace {

constexpr double kLimitNarrow = 0.80;
constexpr double kLimitElse = 1.05;
constexpr double kLargestError = 1e-5;  // relative, against f64

struct Layer {
  int64_t n, c_in, c_out, side, kernel, stride, groups;

  ops::ConvolutionOptions options() const {
    return {{stride, stride}, {kernel / 2, kernel / 2}, {1, 1}, groups};
  }
};

constexpr Layer kLayers[] = {
    {16, 64, 256, 56, 1, 1, 1},    {16, 256, 64, 56, 1, 1, 1},   {16, 128, 512, 28, 1, 1, 1},
    {16, 512, 128, 28, 1, 1, 1},   {16, 256, 1024, 14, 1, 1, 1}, {16, 1024, 256, 14, 1, 1, 1},
    {16, 512, 2048, 7, 1, 1, 1},   {16, 2048, 512, 7, 1, 1, 1},  {16, 256, 512, 56, 1, 2, 1},
    {16, 1024, 2048, 14, 1, 2, 1}, {16, 128, 128, 56, 3, 2, 1},  {16, 512, 512, 14, 3, 2, 1},
    {16, 512, 512, 7, 3, 1, 1},    {16, 128, 128, 56, 3, 1, 32}, {16, 256, 256, 56, 3, 2, 32},
    {16, 256, 256, 28, 3, 1, 32},  {16, 512, 512, 28, 3, 2, 32}, {16, 512, 512, 14, 3, 1, 32},
    {32, 128, 128, 56, 3, 1, 64},  {32, 256, 256, 28, 3, 1, 64}, {32, 512, 512, 14, 3, 1, 64},
    {32, 1024, 1024, 7, 3, 1, 64},
};

using Convolution = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& weight, const Layer& l)>;

at::Tensor ours(const at::Tensor& x, const at::Tensor& weight, const Layer& l) {
  return ops::convolution(x, weight, std::nullopt, l.options());
}
at::Tensor libtorchs(const at::Tensor& x, const at::Tensor& weight, const Layer& l) {
  const auto o = l.options();
  return at::conv2d(x, weight, {}, o.stride, o.padding, o.dilation, o.groups);
}

struct Values {
  at::Tensor x, weight, dout;

  Values(const Layer& l, at::ScalarType type) {
    torch::manual_seed(0);
    const auto make = [&](at::IntArrayRef sizes) {
      return torch::randn(sizes).to(type).contiguous(at::MemoryFormat::ChannelsLast);
    };
    x = make({l.n, l.c_in, l.side, l.side}).set_requires_grad(true);
    weight = make({l.c_out, l.c_in / l.groups, l.kernel, l.kernel}).set_requires_grad(true);
    const int64_t out = (l.side - 1) / l.stride + 1;
    dout = make({l.n, l.c_out, out, out});
  }
};

std::vector<at::Tensor> results(const Values& v, const Layer& l, const Convolution& convolution) {
  const at::Tensor out = convolution(v.x, v.weight, l);
  auto all = torch::autograd::grad({out}, {v.x, v.weight}, {v.dout});
  all.push_back(out.detach());
  return all;
}

/// At two images: f64 is slow.
void verify(Layer l) {
  l.n = 2;
  const auto got = results(Values(l, at::kFloat), l, ours);
  const auto want = results(Values(l, at::kDouble), l, libtorchs);
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = ((got[i].to(at::kDouble) - want[i]).norm() / want[i].norm()).item<double>();
    if (!(error <= kLargestError))
      throw std::runtime_error("result " + std::to_string(i) +
                               " (gradients of input and weight; output) differs from libtorch in f64 by " +
                               std::to_string(error) + " relative");
  }
}

Row measure(const Layer& l, int repeats) {
  verify(l);
  const Values v(l, at::kFloat);
  const auto side = [&](const Convolution& convolution) {
    return [&, convolution] { return 1e3 * seconds_of([&] { results(v, l, convolution); }); };
  };
  const auto times = interleave({side(ours), side(libtorchs)}, repeats);
  Row row;
  row.claim = c10::str("(", l.n, ", ", l.c_in, ", ", l.side, ") to ", l.c_out, ", ", l.kernel, "x", l.kernel,
                       l.stride > 1 ? c10::str(", stride ", l.stride) : "",
                       l.groups > 1 ? c10::str(", ", l.groups, " groups") : "");
  row.opponent_name = "conv2d";
  row.unit = "ms";
  row.measured = times[0];
  row.opponent = times[1];
  const bool narrow = l.groups > 1 && l.c_in / l.groups <= 4;
  row.limit = narrow ? kLimitNarrow : kLimitElse;
  return row;
}

}  // namespace

int run(int argc, char** argv) {
  return run_benchmark("convolution_time", argc, argv,
                       "Times convolutions with kernels of ours, forward + backward, against libtorch's.",
                       [](Report& report, const Options& options) {
                         for (const Layer& l : kLayers) report.add(measure(l, (options.repeats + 1) / 2));
                       });
}

}  // namespace palimpsest::benchmarks::convolution_time
