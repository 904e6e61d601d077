#include "palimpsest/kernels/conv2d.h"

#include "palimpsest/kernels/cpu/conv2d/grouped.h"
#include "palimpsest/kernels/cpu/conv2d/weight_gradient.h"

namespace palimpsest::kernels::cpu {

bool has_conv2d(const Conv2dProblem& layer, Conv2dPass pass) {
  return grouped_conv2d_fits(layer, pass) ||
         (pass == Conv2dPass::kBackwardWeight && conv2d_weight_fits(layer));
}

void conv2d_forward(const Conv2dProblem& layer, const float* x, const float* w, float* y) {
  grouped_conv2d_forward(layer, x, w, y);
}

void conv2d_backward_input(const Conv2dProblem& layer, const float* dy, const float* w, float* dx) {
  grouped_conv2d_backward_input(layer, dy, w, dx);
}

void conv2d_backward_weight(const Conv2dProblem& layer, const float* x, const float* dy, float* dw) {
  if (conv2d_weight_fits(layer))
    conv2d_weight(layer, x, dy, dw);
  else
    grouped_conv2d_backward_weight(layer, x, dy, dw);
}

}  // namespace palimpsest::kernels::cpu
