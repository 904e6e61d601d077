#include "palimpsest/ops/upsampled_loss/native.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace palimpsest::ops::upsampled_loss_detail::meta {

std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& /*targets*/,
                                           const LossArguments& /*arguments*/, bool for_backward) {
  const auto type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {at::empty({4}, logits.options().dtype(at::kDouble).memory_format(std::nullopt)),
          for_backward ? at::empty_like(logits, logits.options().dtype(type), logits.suggest_memory_format())
                       : at::empty({0}, logits.options().dtype(type).memory_format(std::nullopt))};
}

at::Tensor argmax(const at::Tensor& logits, c10::SymIntArrayRef size, bool /*align_corners*/) {
  TORCH_CHECK(size.size() == 2, "[upsampled_argmax] size must be two numbers (height, width), got ", size);
  return at::empty_symint({logits.sym_size(0), size[0], size[1]},
                          logits.options().dtype(at::kLong).memory_format(std::nullopt));
}

}  // namespace palimpsest::ops::upsampled_loss_detail::meta
