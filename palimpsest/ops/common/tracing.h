#pragma once

#include <ATen/core/Tensor.h>

namespace palimpsest::ops {

/// Returns whether `t` stands for values that a traced graph computes later (torch.compile, torch.export,
/// make_fx), or is a meta tensor: then nothing may be decided by its values, and it may have no memory.
bool is_traced(const at::Tensor& t);

}  // namespace palimpsest::ops
