// Claim:    max pooling that saves one byte per output takes no longer, forward + backward, than
//           at::max_pool2d, which saves eight bytes per output and its input.
// Opponent: at::max_pool2d.
// Limit:    1.00 for 3x3 windows of stride 2 over (16, 64, 112, 112), the stem of a ResNet, and for 2x2
//           windows.
//
// Both sides have the same input and gradient, the same allocator (which retains freed blocks) and threads.
// Before the timing, output and gradient are compared: in f32 and f64 both are equal to the bit; in 16 bits
// only the outputs are, because libtorch rounds gradients after every addition.
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

at::Tensor our_pool(const at::Tensor& x, Window w) {
  return ops::max_pool2d(x, w.kernel, 2, w.padding);
}
at::Tensor library_pool(const at::Tensor& x, Window w) {
  return at::max_pool2d(x, w.kernel, 2, w.padding);
}

Side side(const at::Tensor& x, const at::Tensor& dz, Window window, const Pool& pool) {
  return [=] { return 1e3 * seconds_of([&] { torch::autograd::grad({pool(x, window)}, {x}, {dz}); }); };
}

void verify(const at::Tensor& x, const at::Tensor& dz, Window window) {
  const at::Tensor got = our_pool(x, window), want = library_pool(x, window);
  const bool same_gradients =
      at::isReducedFloatingType(x.scalar_type()) ||
      torch::autograd::grad({got}, {x}, {dz})[0].equal(torch::autograd::grad({want}, {x}, {dz})[0]);
  if (!got.equal(want) || !same_gradients) throw std::runtime_error("the results differ from libtorch's");
}

Row measure(at::ScalarType type, at::MemoryFormat format, Window window, int repeats) {
  torch::manual_seed(0);
  const at::Tensor x = torch::randn({16, 64, 112, 112}).to(type).contiguous(format).set_requires_grad(true);
  const at::Tensor dz = torch::randn_like(library_pool(x, window).detach());
  verify(x, dz, window);
  const auto times = interleave({side(x, dz, window, our_pool), side(x, dz, window, library_pool)}, repeats);
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

void measure_all(Report& report, const Options& options) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
    for (const auto type : {at::kFloat, at::kBFloat16})
      for (const Window window : {Window{3, 1}, Window{2, 0}})
        report.add(measure(type, format, window, options.repeats));
}

const Benchmark kBenchmark(
    "max_pool_time", "Times max pooling with one byte per output, forward + backward, against libtorch's.",
    measure_all);

}  // namespace
}  // namespace palimpsest::benchmarks::max_pool_time
