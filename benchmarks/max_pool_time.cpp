// Claim: max pooling that keeps one byte an output takes, forward + backward, no longer than at::max_pool2d,
// which keeps eight and its input: 3x3 windows of stride 2 over (16, 64, 112, 112), the stem of a ResNet, and
// 2x2 ones.
//
// Both sides: the same input and gradient, the same allocator (which retains freed blocks) and threads.
// Before anything is timed, output and gradient are compared: they are equal to the bit in f32 and f64; in 16
// bits, where libtorch rounds after every addition, the outputs.
#include "benchmarks/support.h"

#include "palimpsest/ops/max_pool.h"

#include <torch/torch.h>

#include <stdexcept>

namespace palimpsest::benchmarks::max_pool_time {
namespace {

constexpr double kLimit = 1.0;

struct Window {
  int64_t kernel, padding;
};

using Pool = std::function<at::Tensor(const at::Tensor& x, Window window)>;

at::Tensor ours(const at::Tensor& x, Window w) {
  return ops::max_pool2d(x, w.kernel, 2, w.padding);
}
at::Tensor libtorchs(const at::Tensor& x, Window w) {
  return at::max_pool2d(x, w.kernel, 2, w.padding);
}

Side side(const at::Tensor& x, const at::Tensor& dz, Window window, const Pool& pool) {
  return [=] { return 1e3 * seconds_of([&] { torch::autograd::grad({pool(x, window)}, {x}, {dz}); }); };
}

void verify(const at::Tensor& x, const at::Tensor& dz, Window window) {
  const at::Tensor got = ours(x, window), want = libtorchs(x, window);
  const bool same_gradients =
      at::isReducedFloatingType(x.scalar_type()) ||
      torch::autograd::grad({got}, {x}, {dz})[0].equal(torch::autograd::grad({want}, {x}, {dz})[0]);
  if (!got.equal(want) || !same_gradients) throw std::runtime_error("the results differ from libtorch's");
}

Row measure(at::ScalarType type, at::MemoryFormat format, Window window, int repeats) {
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({16, 64, 112, 112}).to(type).contiguous(format).set_requires_grad(true);
  const at::Tensor dz = torch::randn_like(libtorchs(x, window).detach());
  verify(x, dz, window);
  const auto times = interleave({side(x, dz, window, ours), side(x, dz, window, libtorchs)}, repeats);
  Row row;
  row.claim = c10::str(window.kernel, "x", window.kernel, " ", type,
                       format == at::MemoryFormat::Contiguous ? " NCHW" : " channels-last");
  row.opponent_name = "at::max_pool2d";
  row.unit = "ms";
  row.measured = times[0];
  row.opponent = times[1];
  row.limit = kLimit;
  return row;
}

}  // namespace

int run(int argc, char** argv) {
  return run_benchmark(
      "max_pool_time", argc, argv,
      "Times max pooling with a byte an output, forward + backward, against libtorch's.",
      [](Report& report, const Options& options) {
        for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
          for (const auto type : {at::kFloat, at::kBFloat16})
            for (const Window window : {Window{3, 1}, Window{2, 0}})
              report.add(measure(type, format, window, options.repeats));
      });
}

}  // namespace palimpsest::benchmarks::max_pool_time
