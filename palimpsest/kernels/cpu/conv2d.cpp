#include "palimpsest/kernels/conv2d.h"

#include "palimpsest/kernels/cpu/conv2d_weight.h"

#include <stdexcept>

namespace palimpsest::kernels::cpu {

bool has_conv2d(const Conv2dLayer& layer, Conv2dPass pass) {
  return pass == Conv2dPass::kBackwardWeight && conv2d_weight_fits(layer);
}

void conv2d_forward(const Conv2dLayer&, const float*, const float*, float*) {
  throw std::logic_error("no kernel for this convolution: ask has_conv2d first");
}

void conv2d_backward_input(const Conv2dLayer&, const float*, const float*, float*) {
  throw std::logic_error("no kernel for this gradient of an input: ask has_conv2d first");
}

void conv2d_backward_weight(const Conv2dLayer& layer, const float* x, const float* dy, float* dw) {
  if (conv2d_weight_fits(layer)) return conv2d_weight(layer, x, dy, dw);
  throw std::logic_error("no kernel for this gradient of a weight: ask has_conv2d first");
}

}  // namespace palimpsest::kernels::cpu
