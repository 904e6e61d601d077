#pragma once

#include "palimpsest/train/network.h"
#include "palimpsest/train/tensor_format.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

// Several views of one image, whose scores are averaged in an evaluation.
namespace palimpsest::train {

/// The views of an image for a segmentation network: the image at each of `scales`, in windows if `window` > 0,
/// and the mirror image of each view if `flip`.
struct ViewOptions {
  std::vector<double> scales{1.0};  ///< factors of the image's height and width; at most 64, each in (0, 4]
  bool flip = false;
  /// Side of the square windows, pixels of the scaled image; 0: the whole image. On an axis where the scaled
  /// image is shorter, the window shrinks to the image, and nothing is padded.
  int64_t window = 0;
  /// Pixels between neighbouring windows, at most `window`; 0: two thirds of `window`, rounded up. The last
  /// window of an axis ends with the image.
  int64_t stride = 0;

  /// Returns whether the image itself is the only view.
  bool is_single() const;
};

/// Throws Error(kUsage) for options out of range: no scale, more than 64, a scale outside of (0, 4], a stride larger than
/// the window, or a stride without a window.
void check_views(const ViewOptions& options);

/// Receives the class probabilities of the image rows from `top` on: (C, rows, W), in memory as (rows, W, C).
using BandReceiver = std::function<void(int64_t top, const at::Tensor& probabilities)>;

/// Computes the class probabilities of `image`, averaged over its views, and passes them on in bands of
/// rows from top to bottom.
///   p[c,Y,X] = 1/V sum_v sum_k a[v,k,Y,X] softmax(z[v,k,:,Y,X])[c]
/// v: the V = scales (times 2 with flip) views; k: the windows of a view. z are the coarse logits of a
/// window (Network::coarse_logits), read between their pixel centres at the place of the image's pixel: for one
/// window this is at::upsample_bilinear2d(logits, image size) without align_corners. a rises and falls
/// linearly over the overlap of neighbouring windows, and its sum over k is 1. So the probabilities have no
/// step where a window begins. Images are scaled linearly between pixel centres; a scale below 1 averages
/// over the pixels that one pixel replaces, as at::_upsample_bilinear2d_aa does.
///
/// image: (3, H, W) in `format`. The network must be in eval mode (train::EvalMode), without gradients.
/// Each window is a batch of its own, so the result is the same whatever the batch.
/// Memory, beside the network's own for one window: a band of about 2^20 probabilities four times, and the
/// coarse logits of the windows that reach into the band. Without windows these are those of the whole image
/// at each scale. With windows they do not depend on the height of the image.
/// Throws Error(kUsage) if a scale leaves no pixel of the image.
void for_each_band(const Network& network, const at::Tensor& image, const ViewOptions& options,
                   const TensorFormat& format, const BandReceiver& receive);

/// Returns the logits of images (N, 3, H, W), averaged over ten crops of side `side`: (N, classes). The crops
/// are the corners (top left, top right, bottom left, bottom right) and the centre, then the same of the mirror
/// image, as torchvision's TenCrop orders them. The logits are averaged, and not the probabilities, because the
/// program that made the in-place paper's tables does this.
/// Throws Error(kUsage) for images smaller than a crop.
at::Tensor ten_crop_logits(const Network& network, const at::Tensor& images, int64_t side,
                           const TensorFormat& format);

}  // namespace palimpsest::train
