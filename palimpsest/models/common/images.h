#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace palimpsest::models {

/// Throws Error(kUsage) unless `images` is (N, 3, H, W) of a floating type with H and W of at least 1. N may
/// be 0.
void check_images(const std::string& model, const at::Tensor& images);
/// Throws Error(kUsage) unless height and width of `images` are at least `least`, which the poolings of the
/// network halve to one pixel.
void check_least_side(const std::string& model, const at::Tensor& images, int64_t least);

}  // namespace palimpsest::models
