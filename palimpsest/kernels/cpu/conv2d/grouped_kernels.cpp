// A unit of one instruction set: nothing of std:: may be used (see cpu/abn/f32.cpp).
#include "palimpsest/kernels/cpu/conv2d/grouped_kernels.h"

#include "palimpsest/kernels/cpu/conv2d/grouped_gradient.h"
#include "palimpsest/kernels/cpu/conv2d/grouped_sweep.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d {

using cpu::conv2d::GroupedKernels;

namespace {

void sweep(const GroupedSweep& s, int64_t image, int64_t begin, int64_t end) {
  switch (s.group) {
    case 2:
      return sweep_groups<2>(s, {image, begin, end});
    case 4:
      return sweep_groups<4>(s, {image, begin, end});
    case 8:
      return sweep_groups<8>(s, {image, begin, end});
    default:
      return sweep_groups<16>(s, {image, begin, end});
  }
}

template <int kGroup>
void weight_gradient_in_groups(const GroupedWeightGradient& g, const Segment& segment, const Segment& next,
                               int64_t first_vector, int64_t last_vector, float* sums) {
  const auto size = static_cast<unsigned long>((last_vector - first_vector) * 9 * kGroup * kLanes);
  __builtin_memset(sums, 0, size * sizeof(float));
  if (g.stride == 1)
    add_segment<1, kGroup>(g, segment, next, {first_vector, last_vector}, sums);
  else
    add_segment<2, kGroup>(g, segment, next, {first_vector, last_vector}, sums);
}

void weight_gradient(const GroupedWeightGradient& g, const Segment& segment, const Segment& next,
                     int64_t first_vector, int64_t last_vector, float* sums) {
  switch (g.group) {
    case 2:
      return weight_gradient_in_groups<2>(g, segment, next, first_vector, last_vector, sums);
    case 4:
      return weight_gradient_in_groups<4>(g, segment, next, first_vector, last_vector, sums);
    case 8:
      return weight_gradient_in_groups<8>(g, segment, next, first_vector, last_vector, sums);
    default:
      return weight_gradient_in_groups<16>(g, segment, next, first_vector, last_vector, sums);
  }
}

}  // namespace

extern const GroupedKernels kGrouped = {kLanes, sweep, weight_gradient};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::conv2d
