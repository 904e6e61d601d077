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

/// Default boxes of a grid with `stride` pixels between centres, of each of `sides`: by row, column, side.
std::vector<Box> default_boxes(int64_t image_side, int64_t stride, const std::vector<double>& sides);

/// What a network should say of n images: kinds (n, boxes), 0 where no object is, and offsets (n, boxes, 4).
/// A default box belongs to the object that it overlaps most, from 0.5 on; each object has at least its best
/// one.
struct Targets {
  torch::Tensor kinds, offsets;
};
Targets match(const std::vector<std::vector<Object>>& objects, const std::vector<Box>& boxes);

/// Detections of one image from its probabilities (boxes, kinds + 1) and offsets (boxes, 4), f32: of each
/// kind those of at least 0.05, the best 100, that overlap no better one by more than 0.45.
std::vector<Object> detect(const torch::Tensor& probabilities, const torch::Tensor& offsets,
                           const std::vector<Box>& boxes);

/// Mean over kinds of the area below the curve of precision over recall; a detection is right that overlaps
/// an object of its kind, not found before, by at least 0.5.
double mean_average_precision(const std::vector<std::vector<Object>>& detections,
                              const std::vector<std::vector<Object>>& objects, int64_t kinds);

}  // namespace mixed_precision
