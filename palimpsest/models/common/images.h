#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace palimpsest::models {

/// Throws Error(kUsage) unless `images` is (N, 3, H, W) of a floating type with H and W of at least 1. N may
/// be 0.
void check_images(const std::string& model, const at::Tensor& images);

}  // namespace palimpsest::models
