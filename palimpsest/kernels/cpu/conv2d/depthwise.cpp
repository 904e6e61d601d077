#include "palimpsest/kernels/cpu/conv2d/depthwise.h"

#include "palimpsest/kernels/cpu/conv2d/depthwise_kernels.h"
#include "palimpsest/kernels/cpu/conv2d/segments.h"
#include "palimpsest/kernels/cpu/dispatch.h"

namespace palimpsest::kernels::cpu::conv2d {

bool fits_depthwise(const Conv2dProblem& problem) {
  const int64_t width = problem.kernel_size.w;
  return problem.groups == problem.c_in && problem.c_out == problem.c_in && width % 2 == 1 && width >= 3 &&
         width <= kWidestWindow && problem.padding.h >= 0 && problem.padding.w >= 0 &&
         problem.c_in >= current_instruction_set().depthwise_conv2d.lanes && problem.out.h >= 1 &&
         problem.out.w >= 1;
}

void depthwise_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw) {
  const DepthwiseKernels& kernels = current_instruction_set().depthwise_conv2d;
  const DepthwiseGradient gradient{x, dy, problem};
  sum_segments(
      problem, kernels.lanes,
      [&](const Segment& segment, const Segment&, int64_t first, int64_t last, float* sums) {
        kernels.weight_gradient(gradient, segment, first, last, sums);
      },
      dw);
}

}  // namespace palimpsest::kernels::cpu::conv2d
