#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/shape.h"

#include <cstdint>

/// The cross-entropy of bilinearly upsampled logits, without the upsampled logits. Forward writes the gradient
/// of the small logits, too, so that backward is a product with one number.
///
/// Pixel (Y, X) of the image reads the logits of four pixels of the small map:
///   source(Y)  = Y (h - 1) / (H - 1) with align_corners (0 if H = 1), else max((Y + 0.5) h / H - 0.5, 0)
///   top        = floor(source), bottom = min(top + 1, h - 1), v = source - top; the same for columns: u
///   z[c]       = (1-v) ((1-u) x[c,top,left] + u x[c,top,right]) + v (the same of the bottom row)
/// These are at::upsample_bilinear2d's rules. With t the class of the pixel, p = softmax(z), w the class
/// weights (1 if none are given), W their sum, e the label smoothing, C the classes:
///   l(Y,X)     = (1-e) w[t] (-log p[t]) + e/C sum_c w[c] (-log p[c])
///   dl/dz[c]   = p[c] ((1-e) w[t] + e W/C) - (1-e) w[t] [c = t] - e/C w[c]
/// L = sum of l over S / sum of w[t] over S, where S are the pixels that are not `ignored`; with bootstrapping
/// only the hardest of them: per image the ceil(share n) of its n pixels with the largest -log p[t], computed
/// in f64; of equal ones those that come first. NaN is harder than any number. Of these only those with
/// p[t] < `probability`, if that is below 1.
///
/// Pointers: x, gradient (N, C, h, w) contiguous in `layout`, f32 or f64; no alignment is required. targets
/// (N, H, W), i64 or u8.
/// Memory of a call: a few rows of the small map per thread, with channels padded to whole vectors; and the
/// workspace, which holds 32 bytes per band of the map's rows, and with a gradient one such row. Bootstrapping
/// takes a few images at a time, and has a number and a byte per pixel of these; beside the workspace it needs
/// 32 bytes for each pixel that is as hard as the last one chosen, but for rounding, and two numbers for at most
/// every 8th pixel.
/// The result has the same bytes for any number of threads.
namespace palimpsest::kernels {

struct UpsampledProblem {
  int64_t n = 0, c = 0;
  Pair2 in, out;  ///< the small map, the image; all sizes at least 1
  Layout layout = Layout::kNCHW;
  DType dtype = DType::f32;  ///< f32 or f64
  bool align_corners = false;
};

struct CrossEntropyTargets {
  const void* ids = nullptr;
  bool bytes = false;  ///< u8 instead of i64
  int64_t ignored = 255;
};

struct CrossEntropyRules {
  const double* weight = nullptr;  ///< per class, at least 0; null: all are 1
  double label_smoothing = 0;      ///< in [0, 1]
  double share = 1;                ///< in (0, 1]
  double probability = 1;          ///< in (0, 1]
  /// Bootstrapping takes so many images at a time: more keep more threads at work, and need more memory.
  int64_t ranked_images = 1;
};

/// What a call returns. `first_wrong` is the place of the first target that is neither a class nor ignored,
/// or -1; if there is one, nothing else is defined.
struct CrossEntropySums {
  double loss = 0, weight = 0;  ///< of S: sum of l, sum of w[t]
  int64_t count = 0;            ///< |S|
  int64_t first_wrong = -1;
};

namespace cpu {

/// Returns the bytes of the workspace of upsampled_cross_entropy, with a gradient or without.
int64_t upsampled_cross_entropy_workspace_bytes(const UpsampledProblem& problem,
                                                const CrossEntropyRules& rules, bool has_gradient);
/// Writes the gradient of the sum of l over S (not of L) unless it is null. `workspace` is aligned for double; if
/// it is null, the call allocates it.
CrossEntropySums upsampled_cross_entropy(const UpsampledProblem& problem, const void* x,
                                         const CrossEntropyTargets& targets, const CrossEntropyRules& rules,
                                         void* gradient, void* workspace = nullptr);

/// Writes the class with the largest upsampled logit of each pixel, (N, H, W); the first of equal ones. NaN is
/// above any number. Class ids are i64, or u8 if `bytes` (at most 256 classes).
void upsampled_argmax(const UpsampledProblem& problem, const void* x, bool bytes, void* ids);

}  // namespace cpu

/// The same functions as plain loops in double, which are the reference of the tests.
namespace reference {

CrossEntropySums upsampled_cross_entropy(const UpsampledProblem& problem, const void* x,
                                         const CrossEntropyTargets& targets, const CrossEntropyRules& rules,
                                         void* gradient);
void upsampled_argmax(const UpsampledProblem& problem, const void* x, bool bytes, void* ids);

}  // namespace reference
}  // namespace palimpsest::kernels
