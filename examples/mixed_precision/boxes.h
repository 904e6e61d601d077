#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

/// Boxes of the single shot detector (Liu et al., "SSD", ECCV 2016, section 2): default boxes, matching,
/// decoding, non-maximum suppression, average precision.
namespace mixed_precision {

/// Corners, in pixels.
struct Box {
  double x0, y0, x1, y1;
};
/// Intersection over union.
double overlap(const Box& a, const Box& b);

struct Object {
  int64_t kind;  ///< from 1; 0 is the background
  Box box;
  double score = 1;  ///< of a detection
};

/// Makes the default boxes of a grid with `stride` pixels between centres and one box per side of `sides`,
/// ordered by row, column and side.
std::vector<Box> default_boxes(int64_t image_side, int64_t stride, const std::vector<double>& sides);

/// The targets of a network for n images: kinds (n, boxes), 0 for the background, and offsets (n, boxes, 4).
/// A default box belongs to the object that it overlaps most, if the overlap is at least 0.5. Each object has
/// at least the box that overlaps it most. Two objects may want the same box: the first one has it, and the
/// second one has the box that overlaps it most of those that are left. If none is left, an object has no box.
struct Targets {
  torch::Tensor kinds, offsets;
};
Targets match(const std::vector<std::vector<Object>>& objects, const std::vector<Box>& boxes);

/// Makes the detections of one image from its probabilities (boxes, kinds + 1) and offsets (boxes, 4), f32.
/// Per kind these are the boxes with a probability of at least 0.05, the best 100 of them, without those that
/// overlap a better one by more than 0.45.
std::vector<Object> detect(const torch::Tensor& probabilities, const torch::Tensor& offsets,
                           const std::vector<Box>& boxes);

/// Returns the mean over kinds of the area below the curve of precision over recall. A detection is right if
/// it overlaps an object of its kind by at least 0.5 and no earlier detection found that object.
double mean_average_precision(const std::vector<std::vector<Object>>& detections,
                              const std::vector<std::vector<Object>>& objects, int64_t kinds);

}  // namespace mixed_precision
