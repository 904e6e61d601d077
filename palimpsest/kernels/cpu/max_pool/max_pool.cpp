#include "palimpsest/kernels/max_pool.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/max_pool/kernels.h"

#include <algorithm>
#include <vector>

namespace palimpsest::kernels::cpu {

namespace {

// A share of the work: waking threads costs more than this many values take.
constexpr int64_t kTaskValues = 32768;

const MaxPoolSweeps& sweeps_of(DType dtype) {
  const MaxPoolKernels& kernels = current_instruction_set().max_pool;
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

/// body(begin, end) for ranges that together are [0, count), each of about kTaskValues values; which they are
/// depends on the shape alone.
template <class Body>
void in_tasks(int64_t count, int64_t values_each, const Body& body) {
  const int64_t each = std::max<int64_t>(1, kTaskValues / std::max<int64_t>(1, values_each));
  parallel_tasks((count + each - 1) / each,
                 [&](int64_t i) { body(i * each, std::min(count, (i + 1) * each)); });
}

/// Saved by the thread: fresh memory would cost more page faults than a small plane takes.
void* scratch(int64_t bytes) {
  thread_local std::vector<int64_t> kept;
  const auto words = static_cast<std::size_t>(bytes + 7) / 8;
  if (kept.size() < words) kept.resize(words);
  return kept.data();
}

/// The windows that hold each pixel along one dimension.
class Taps {
 public:
  Taps(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
    first_.reserve(static_cast<std::size_t>(in) + 1);
    first_.push_back(0);
    for (int64_t i = 0; i < in; ++i) {
      const int64_t padded = i + padding;  // from the first pixel of window 0
      const int64_t last = std::min(out - 1, padded / stride);
      const int64_t before = padded - (kernel - 1) * dilation;
      for (int64_t o = before <= 0 ? 0 : (before + stride - 1) / stride; o <= last; ++o) {
        const int64_t into = padded - o * stride;
        if (into % dilation == 0)
          taps_.push_back({static_cast<int32_t>(o), static_cast<int32_t>(into / dilation)});
      }
      first_.push_back(static_cast<int32_t>(taps_.size()));
    }
  }

  operator PoolTaps() const { return {first_.data(), taps_.data()}; }

 private:
  std::vector<int32_t> first_;
  std::vector<PoolTap> taps_;
};

}  // namespace

void max_pool_forward(const MaxPoolProblem& layer, const void* x, void* z, uint8_t* argmax) {
  const MaxPoolSweeps& sweeps = sweeps_of(layer.dtype);
  const int64_t pixels_in = layer.in.h * layer.in.w, pixels_out = layer.out.h * layer.out.w;
  if (layer.layout == Layout::kChannelsLast) {
    const int64_t in_per_row = layer.in.h * layer.in.w * layer.c / layer.out.h;
    in_tasks(layer.n * layer.out.h, in_per_row,
             [&](int64_t begin, int64_t end) { sweeps.forward_rows(layer, begin, end, x, z, argmax); });
    return;
  }
  const auto size = static_cast<int64_t>(size_of(layer.dtype));
  const int64_t bytes = sweeps.forward_scratch(layer);
  in_tasks(layer.planes(), pixels_in, [&](int64_t begin, int64_t end) {
    sweeps.forward_planes(layer, end - begin, static_cast<const char*>(x) + begin * pixels_in * size,
                          static_cast<char*>(z) + begin * pixels_out * size,
                          argmax ? argmax + begin * pixels_out : nullptr, scratch(bytes));
  });
}

void max_pool_backward(const MaxPoolProblem& layer, const void* dz, const uint8_t* argmax, void* dx) {
  const MaxPoolSweeps& sweeps = sweeps_of(layer.dtype);
  const PoolWindow& p = layer.window;
  const int64_t pixels_in = layer.in.h * layer.in.w, pixels_out = layer.out.h * layer.out.w;
  if (layer.layout == Layout::kChannelsLast) {
    const Taps rows(layer.in.h, layer.out.h, p.kernel_size.h, p.stride.h, p.padding.h, p.dilation.h);
    const Taps columns(layer.in.w, layer.out.w, p.kernel_size.w, p.stride.w, p.padding.w, p.dilation.w);
    in_tasks(layer.n * layer.in.h, layer.in.w * layer.c, [&](int64_t begin, int64_t end) {
      sweeps.backward_rows(layer, begin, end, rows, columns, dz, argmax, dx);
    });
    return;
  }
  const auto size = static_cast<int64_t>(size_of(layer.dtype));
  const int64_t bytes = sweeps.backward_scratch(layer);
  in_tasks(layer.planes(), pixels_in, [&](int64_t begin, int64_t end) {
    sweeps.backward_planes(layer, end - begin, static_cast<const char*>(dz) + begin * pixels_out * size,
                           argmax + begin * pixels_out, static_cast<char*>(dx) + begin * pixels_in * size,
                           scratch(bytes));
  });
}

}  // namespace palimpsest::kernels::cpu
