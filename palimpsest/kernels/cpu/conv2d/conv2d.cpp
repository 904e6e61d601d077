#include "palimpsest/kernels/conv2d.h"

#include "palimpsest/kernels/cpu/conv2d/depthwise.h"
#include "palimpsest/kernels/cpu/conv2d/grouped.h"
#include "palimpsest/kernels/cpu/conv2d/pointwise.h"
#include "palimpsest/kernels/cpu/conv2d/weight_gradient.h"
#include "palimpsest/kernels/cpu/conv2d/winograd.h"

#include <algorithm>

namespace palimpsest::kernels::cpu {

namespace {

/// Returns whether the kernels for narrow groups take the images: they read f32.
bool has_grouped(const Conv2dProblem& problem) {
  return problem.dtype == DType::f32 && conv2d::fits_grouped(problem);
}

}  // namespace

bool has_winograd(const Conv2dProblem& problem) {
  return problem.dtype != DType::f64 && conv2d::fits_winograd(problem) && !has_grouped(problem) &&
         conv2d::winograd_saves_time(problem);
}

bool has_conv2d(const Conv2dProblem& problem, Conv2dPass pass) {
  if (problem.dtype == DType::f64) return false;
  const auto least = [](const Pair2& size) { return std::min(size.h, size.w); };
  if (std::min({problem.n, least(problem.in), least(problem.out)}) < 1) return false;
  const bool grouped = !problem.relu_x && has_grouped(problem);
  switch (pass) {
    case Conv2dPass::kForward:
      return has_winograd(problem) || conv2d::fits_pointwise_forward(problem) || grouped;
    case Conv2dPass::kBackwardInput:
      return has_winograd(problem) || conv2d::fits_pointwise_backward_input(problem) || grouped;
    case Conv2dPass::kBackwardWeight:
      return has_winograd(problem) || conv2d::fits_weight_gradient(problem) || grouped ||
             (!problem.relu_x && problem.dtype == DType::f32 && conv2d::fits_depthwise(problem));
  }
  return false;
}

void conv2d_forward(const Conv2dProblem& problem, const void* x, const float* w, void* y) {
  if (has_winograd(problem))
    conv2d::winograd_forward(problem, x, w, y);
  else if (conv2d::fits_pointwise_forward(problem))
    conv2d::pointwise_forward(problem, x, w, y);
  else
    conv2d::grouped_forward(problem, static_cast<const float*>(x), w, static_cast<float*>(y));
}

void conv2d_backward_input(const Conv2dProblem& problem, const void* dy, const float* w, const void* x,
                           void* dx) {
  if (has_winograd(problem))
    conv2d::winograd_backward_input(problem, dy, w, x, dx);
  else if (conv2d::fits_pointwise_backward_input(problem))
    conv2d::pointwise_backward_input(problem, dy, w, x, dx);
  else
    conv2d::grouped_backward_input(problem, static_cast<const float*>(dy), w, static_cast<float*>(dx));
}

void conv2d_backward_weight(const Conv2dProblem& problem, const void* x, const void* dy, float* dw) {
  if (has_winograd(problem))
    conv2d::winograd_backward_weight(problem, x, dy, dw);
  else if (conv2d::fits_weight_gradient(problem))
    conv2d::weight_gradient(problem, x, dy, dw);
  else if (conv2d::fits_depthwise(problem))
    conv2d::depthwise_backward_weight(problem, static_cast<const float*>(x), static_cast<const float*>(dy),
                                      dw);
  else
    conv2d::grouped_backward_weight(problem, static_cast<const float*>(x), static_cast<const float*>(dy), dw);
}

}  // namespace palimpsest::kernels::cpu
