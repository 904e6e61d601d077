#include "palimpsest/kernels/max_pool.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/max_pool/kernels.h"

#include <algorithm>
#include <vector>

namespace palimpsest::kernels::cpu {
namespace max_pool {
namespace {

// Values per task: for fewer values, waking a thread costs more than the work.
constexpr int64_t kTaskValues = 32768;

const Sweeps& sweeps_of(DType dtype) {
  const Kernels& kernels = current_instruction_set().max_pool;
  switch (dtype) {
    case DType::f64:
      return kernels.f64;
    case DType::f16:
      return kernels.f16;
    case DType::bf16:
      return kernels.bf16;
    default:
      return kernels.f32;
  }
}

/// Calls body(begin, end) for ranges that make up [0, count), each of about kTaskValues values. The cut
/// depends on the shape only.
template <class Body>
void in_tasks(int64_t count, int64_t values_each, const Body& body) {
  const int64_t each = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(1, values_each));
  parallel_tasks((count + each - 1) / each,
                 [&](int64_t i) { body(i * each, std::min(count, (i + 1) * each)); });
}

/// Returns memory that the thread keeps: page faults of fresh memory would cost more than a small plane
/// takes.
void* scratch(int64_t bytes) {
  thread_local std::vector<int64_t> memory;
  const auto words = static_cast<std::size_t>(bytes + 7) / 8;
  if (memory.size() < words) memory.resize(words);
  return memory.data();
}

/// The windows that hold each pixel along one dimension.
class TapList {
 public:
  TapList(int64_t in, int64_t out, int64_t kernel_size, int64_t stride, int64_t padding, int64_t dilation) {
    first_.reserve(static_cast<std::size_t>(in) + 1);
    first_.push_back(0);
    for (int64_t i = 0; i < in; ++i) {
      const int64_t padded = i + padding;  // from the first pixel of window 0
      const int64_t last = std::min(out - 1, padded / stride);
      const int64_t before = padded - (kernel_size - 1) * dilation;
      for (int64_t o = before <= 0 ? 0 : (before + stride - 1) / stride; o <= last; ++o) {
        const int64_t into = padded - o * stride;
        if (into % dilation == 0)
          taps_.push_back({static_cast<int32_t>(o), static_cast<int32_t>(into / dilation)});
      }
      first_.push_back(static_cast<int32_t>(taps_.size()));
    }
  }

  operator Taps() const { return {first_.data(), taps_.data()}; }

 private:
  std::vector<int32_t> first_;
  std::vector<Tap> taps_;
};

}  // namespace
}  // namespace max_pool

void max_pool_forward(const MaxPoolProblem& problem, const void* x, void* z, uint8_t* argmax) {
  const max_pool::Sweeps& sweeps = max_pool::sweeps_of(problem.dtype);
  const int64_t pixels_in = problem.in.h * problem.in.w, pixels_out = problem.out.h * problem.out.w;
  if (problem.layout == Layout::kChannelsLast) {
    const int64_t in_per_row = problem.in.h * problem.in.w * problem.c / problem.out.h;
    max_pool::in_tasks(problem.n * problem.out.h, in_per_row, [&](int64_t begin, int64_t end) {
      sweeps.forward_rows(problem, begin, end, x, z, argmax);
    });
    return;
  }
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const int64_t bytes = sweeps.forward_scratch(problem);
  max_pool::in_tasks(problem.planes(), pixels_in, [&](int64_t begin, int64_t end) {
    sweeps.forward_planes(problem, end - begin, static_cast<const char*>(x) + begin * pixels_in * size,
                          static_cast<char*>(z) + begin * pixels_out * size,
                          argmax ? argmax + begin * pixels_out : nullptr, max_pool::scratch(bytes));
  });
}

void max_pool_backward(const MaxPoolProblem& problem, const void* dz, const uint8_t* argmax, void* dx) {
  const max_pool::Sweeps& sweeps = max_pool::sweeps_of(problem.dtype);
  const PoolWindow& window = problem.window;
  const int64_t pixels_in = problem.in.h * problem.in.w, pixels_out = problem.out.h * problem.out.w;
  if (problem.layout == Layout::kChannelsLast) {
    const max_pool::TapList rows(problem.in.h, problem.out.h, window.kernel_size.h, window.stride.h,
                                 window.padding.h, window.dilation.h);
    const max_pool::TapList columns(problem.in.w, problem.out.w, window.kernel_size.w, window.stride.w,
                                    window.padding.w, window.dilation.w);
    max_pool::in_tasks(problem.n * problem.in.h, problem.in.w * problem.c, [&](int64_t begin, int64_t end) {
      sweeps.backward_rows(problem, begin, end, rows, columns, dz, argmax, dx);
    });
    return;
  }
  const auto size = static_cast<int64_t>(size_of(problem.dtype));
  const int64_t bytes = sweeps.backward_scratch(problem);
  max_pool::in_tasks(problem.planes(), pixels_in, [&](int64_t begin, int64_t end) {
    sweeps.backward_planes(problem, end - begin, static_cast<const char*>(dz) + begin * pixels_out * size,
                           argmax + begin * pixels_out, static_cast<char*>(dx) + begin * pixels_in * size,
                           max_pool::scratch(bytes));
  });
}

}  // namespace palimpsest::kernels::cpu
