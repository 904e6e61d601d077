#include "palimpsest/train/network.h"

namespace palimpsest::train {
namespace {

template <class Forward>
at::Tensor in_precision(const at::Tensor& images, amp::Precision precision, const Forward& forward) {
  at::Tensor logits;
  {
    const amp::PrecisionGuard guard(images.device(), precision);
    logits = forward();
  }
  return precision == amp::Precision::kF32 ? logits : logits.to(at::kFloat);
}

}  // namespace

at::Tensor forward(const Network& network, const at::Tensor& images, amp::Precision precision) {
  return in_precision(images, precision, [&] { return network.forward(images); });
}

at::Tensor coarse_logits(const Network& network, const at::Tensor& images, amp::Precision precision) {
  return in_precision(images, precision, [&] { return network.coarse_logits(images); });
}

}  // namespace palimpsest::train
