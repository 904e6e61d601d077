#pragma once

#include "palimpsest/base/random.h"

#include <ATen/core/Tensor.h>

#include <array>

namespace palimpsest::data {

/// How much the colours of a training image change at random; 0: not at all.
struct ColorOptions {
  /// Each factor is uniform in [1 - strength, 1 + strength]; strengths are in [0, 1].
  double brightness = 0, contrast = 0, saturation = 0;
  /// Standard deviation of the lighting, in units of the eigenvalues of ImageNet's colours; the published
  /// value is 0.1.
  double lighting = 0;

  bool changes() const { return brightness > 0 || contrast > 0 || saturation > 0 || lighting > 0; }
};

/// One change of colours.
struct ColorChange {
  enum Kind { kBrightness, kContrast, kSaturation };
  std::array<Kind, 3> order{kBrightness, kContrast, kSaturation};
  std::array<double, 3> factor{1, 1, 1};  ///< by Kind
  std::array<int, 3> offset{};            ///< grey levels that the lighting adds to R, G and B
};

/// Draws a change. Takes nine numbers of `random` if options.changes(), else none. The order is uniform among
/// the six. The offset of the lighting is sum_i 255 * a_i * l_i * v_i, rounded, where a_i is normal with
/// the standard deviation `lighting`, and l_i and v_i are eigenvalue and eigenvector of ImageNet's colours.
/// Source: Krizhevsky, Sutskever, Hinton, "ImageNet Classification with Deep Convolutional Neural Networks",
/// NIPS 2012; the published values are those of the ResNet training in Torch.
ColorChange draw_colors(const ColorOptions& options, Random& random);

/// Changes a contiguous u8 (H, W, 3) image in place: the three kinds in their order, then the lighting. Each
/// step rounds to grey levels. The three kinds equal Pillow's ImageEnhance bit by bit: the image is mixed with
/// black (brightness), with its mean grey (contrast) or with its grey image (saturation).
void change_colors(const at::Tensor& image, const ColorChange& change);

}  // namespace palimpsest::data
