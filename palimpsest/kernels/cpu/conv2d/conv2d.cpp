#include "palimpsest/kernels/conv2d.h"

#include "palimpsest/kernels/cpu/conv2d/depthwise.h"
#include "palimpsest/kernels/cpu/conv2d/grouped.h"
#include "palimpsest/kernels/cpu/conv2d/pointwise.h"
#include "palimpsest/kernels/cpu/conv2d/weight_gradient.h"
#include "palimpsest/kernels/cpu/conv2d/winograd.h"

namespace palimpsest::kernels::cpu {

bool has_winograd(const Conv2dProblem& problem) {
  return conv2d::fits_winograd(problem) && !conv2d::fits_grouped(problem) &&
         conv2d::winograd_saves_time(problem);
}

bool has_conv2d(const Conv2dProblem& problem, Conv2dPass pass) {
  switch (pass) {
    case Conv2dPass::kForward:
      return has_winograd(problem) || conv2d::fits_pointwise_forward(problem) ||
             (conv2d::fits_grouped(problem) && !problem.relu_x);
    case Conv2dPass::kBackwardInput:
      return has_winograd(problem) || conv2d::fits_pointwise_backward_input(problem) ||
             (conv2d::fits_grouped(problem) && !problem.relu_x);
    case Conv2dPass::kBackwardWeight:
      return has_winograd(problem) || conv2d::fits_weight_gradient(problem) ||
             ((conv2d::fits_depthwise(problem) || conv2d::fits_grouped(problem)) && !problem.relu_x);
  }
  return false;
}

void conv2d_forward(const Conv2dProblem& problem, const float* x, const float* w, float* y) {
  if (has_winograd(problem))
    conv2d::winograd_forward(problem, x, w, y);
  else if (conv2d::fits_pointwise_forward(problem))
    conv2d::pointwise_forward(problem, x, w, y);
  else
    conv2d::grouped_forward(problem, x, w, y);
}

void conv2d_backward_input(const Conv2dProblem& problem, const float* dy, const float* w, const float* x,
                           float* dx) {
  if (has_winograd(problem))
    conv2d::winograd_backward_input(problem, dy, w, x, dx);
  else if (conv2d::fits_pointwise_backward_input(problem))
    conv2d::pointwise_backward_input(problem, dy, w, x, dx);
  else
    conv2d::grouped_backward_input(problem, dy, w, dx);
}

void conv2d_backward_weight(const Conv2dProblem& problem, const float* x, const float* dy, float* dw) {
  if (has_winograd(problem))
    conv2d::winograd_backward_weight(problem, x, dy, dw);
  else if (conv2d::fits_weight_gradient(problem))
    conv2d::weight_gradient(problem, x, dy, dw);
  else if (conv2d::fits_depthwise(problem))
    conv2d::depthwise_backward_weight(problem, x, dy, dw);
  else
    conv2d::grouped_backward_weight(problem, x, dy, dw);
}

}  // namespace palimpsest::kernels::cpu
