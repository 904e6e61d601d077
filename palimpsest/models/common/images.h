#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::models {

/// Throws Error(kUsage) unless `images` is (N, 3, H, W) of a floating type with H and W of at least 1. N may
/// be 0.
void check_images(const std::string& model, const at::Tensor& images);
/// The window of a convolution or pooling along one side of the image.
struct Window {
  int64_t kernel = 1, stride = 1, padding = 0;
  bool ceil_mode = false;  ///< a last window that reaches beyond the border counts, too
};
/// Returns the least side of an image of which these windows, one after the other, leave a pixel.
int64_t least_side(const std::vector<Window>& windows);
/// Throws Error(kUsage) unless height and width of `images` are at least `least`, the network's least_side.
void check_least_side(const std::string& model, const at::Tensor& images, int64_t least);

}  // namespace palimpsest::models
