#include "palimpsest/train/network.h"

namespace palimpsest::train {

at::Tensor forward(const Network& network, const at::Tensor& images, amp::Precision precision) {
  at::Tensor logits;
  {
    const amp::PrecisionGuard guard(images.device(), precision);
    logits = network.forward(images);
  }
  return precision == amp::Precision::kF32 ? logits : logits.to(at::kFloat);
}

}  // namespace palimpsest::train
