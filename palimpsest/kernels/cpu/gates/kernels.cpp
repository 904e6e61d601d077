// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/gates/kernels.h"

#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/math.h"
#include "palimpsest/kernels/formulas/activation.h"
#include "palimpsest/kernels/formulas/precision.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::gates {

using cpu::gates::Kernels;
using cpu::gates::Part;

namespace {

using F = Vector<float>;
constexpr int64_t kLanes = lanes<float, F>();

/// Calls function(act) with the activation, which is then inlined in the sweep.
template <class Function>
void with_activation(const Part& part, const Function& function) {
  dispatch_activation<float>(part.activation, {part.activation_param, precision_of<float>()}, function);
}

/// sums[j] = the sum over the rows of read(i, j), the vector at offset i, column j.
template <class Read, class Prefetch>
PALIMPSEST_HOST_DEVICE void sum_rows(const Block& block, double* sums, const Read& read,
                                     const Prefetch& prefetch) {
  float sum[kMaxColumns], unused[kMaxColumns];
  double not_read[kMaxColumns];
  clear_columns(block.width, sums, not_read);
  for_column_chunks<float>(block, [&](Block chunk, int64_t at) PALIMPSEST_INLINE_LAMBDA {
    sum_columns<float, F>(
        chunk, sum, unused,
        [&](auto place) PALIMPSEST_INLINE_LAMBDA {
          const auto own = place.template own<float, F>();
          return Pair<F>{read(at + own.offset, own.column), F{}};
        },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { prefetch(at + i); });
    add_to_channels(block, sum, unused, sums, not_read);
  });
}

void means(const Part& part, const float* y, float* result) {
  double sums[kMaxColumns];
  with_activation(part, [&](const auto& act) PALIMPSEST_INLINE_LAMBDA {
    sum_rows(
        part.block, sums,
        [&](int64_t i, int64_t) PALIMPSEST_INLINE_LAMBDA { return act.forward(load<F>(y + i)); },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA { fetch_ahead(y + i); });
  });
  const double share = 1 / static_cast<double>(part.block.rows);
  for (int64_t j = 0; j < part.block.width; ++j) result[j] = static_cast<float>(sums[j] * share);
}

void forward(const Part& part, const float* y, const float* gate, float* product) {
  with_activation(part, [&](const auto& act) PALIMPSEST_INLINE_LAMBDA {
    map_rows<Order::kHalves, F, F>(
        part.block, product, Stores::kCached,
        [&](Place<Order::kHalves, 0> at, F& value) PALIMPSEST_INLINE_LAMBDA {
          value = act.forward(load<F>(y + at.offset)) * load<F>(gate + at.column);
        },
        [&](int64_t i, bool, F value) PALIMPSEST_INLINE_LAMBDA { store(product + i, value); });
  });
}

void reduce(const Part& part, const float* y, const float* gate, const float* dproduct, float* dgate,
            float* product) {
  double sums[kMaxColumns];
  with_activation(part, [&](const auto& act) PALIMPSEST_INLINE_LAMBDA {
    sum_rows(
        part.block, sums,
        [&](int64_t i, int64_t j) PALIMPSEST_INLINE_LAMBDA {
          const F z = act.forward(load<F>(y + i));
          if (product) store(product + i, F(z * load<F>(gate + j)));
          return F(load<F>(dproduct + i) * z);
        },
        [&](int64_t i) PALIMPSEST_INLINE_LAMBDA {
          fetch_ahead(y + i);
          fetch_ahead(dproduct + i);
        });
  });
  for (int64_t j = 0; j < part.block.width; ++j) dgate[j] = static_cast<float>(sums[j]);
}

void apply(const Part& part, const float* y, const float* gate, const float* dmean, const float* dproduct,
           float* dy) {
  with_activation(part, [&](const auto& act) PALIMPSEST_INLINE_LAMBDA {
    map_rows<Order::kHalves, F, F>(
        part.block, dy, Stores::kCached,
        [&](Place<Order::kHalves, 0> at, F& value) PALIMPSEST_INLINE_LAMBDA {
          const F dz = load<F>(dproduct + at.offset) * load<F>(gate + at.column) + load<F>(dmean + at.column);
          value = dz * act.derivative_at(load<F>(y + at.offset));
        },
        [&](int64_t i, bool, F value) PALIMPSEST_INLINE_LAMBDA { store(dy + i, value); });
  });
}

}  // namespace

extern const Kernels kKernels = {kLanes, means, forward, reduce, apply};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::gates
