#pragma once

#include "palimpsest/ops/upsampled_loss/functional.h"

#include <c10/core/SymIntArrayRef.h>

/// The passes as schema.cpp registers them: `native` runs on CPU and CUDA tensors, `meta` gives the shapes and
/// strides that tracing and export see.
namespace palimpsest::ops::upsampled_loss_detail {

namespace native {
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& arguments, bool for_backward);
at::Tensor argmax(const at::Tensor& logits, at::IntArrayRef size, bool align_corners);
}  // namespace native

namespace meta {
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& logits, const at::Tensor& targets,
                                           const LossArguments& arguments, bool for_backward);
at::Tensor argmax(const at::Tensor& logits, c10::SymIntArrayRef size, bool align_corners);
}  // namespace meta

}  // namespace palimpsest::ops::upsampled_loss_detail
