#include "palimpsest/kernels/conv2d.h"

#include "palimpsest/kernels/cpu/conv2d/depthwise.h"
#include "palimpsest/kernels/cpu/conv2d/grouped.h"
#include "palimpsest/kernels/cpu/conv2d/weight_gradient.h"

namespace palimpsest::kernels::cpu {

bool has_conv2d(const Conv2dProblem& problem, Conv2dPass pass) {
  return conv2d::fits_grouped(problem) ||
         (pass == Conv2dPass::kBackwardWeight &&
          (conv2d::fits_weight_gradient(problem) || conv2d::fits_depthwise(problem)));
}

void conv2d_forward(const Conv2dProblem& problem, const float* x, const float* w, float* y) {
  conv2d::grouped_forward(problem, x, w, y);
}

void conv2d_backward_input(const Conv2dProblem& problem, const float* dy, const float* w, float* dx) {
  conv2d::grouped_backward_input(problem, dy, w, dx);
}

void conv2d_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw) {
  if (conv2d::fits_weight_gradient(problem))
    conv2d::weight_gradient(problem, x, dy, dw);
  else if (conv2d::fits_depthwise(problem))
    conv2d::depthwise_backward_weight(problem, x, dy, dw);
  else
    conv2d::grouped_backward_weight(problem, x, dy, dw);
}

}  // namespace palimpsest::kernels::cpu
