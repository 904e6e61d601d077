#pragma once

#include <cstdint>

namespace palimpsest::models {

/// Stride and dilation of a stage's first 3x3 convolution, and the dilation of those after it.
struct StageGeometry {
  int64_t stride = 1;
  int64_t first_dilation = 1;
  int64_t dilation = 1;
};

/// Plans the stages of a network whose features have a given output stride. When the output stride is
/// reached, the stride of a stage becomes dilation: its first convolution still reads neighbours at the old
/// distance, and the later convolutions at the doubled distance. Every output of the strided network is then
/// also an output of the dilated network (tests/models/atrous_test.cpp). Where a 1x1 convolution has the stride,
/// the first 3x3 convolution comes after it and takes the doubled distance as well (resnext_preact.h).
class StagePlanner {
 public:
  /// Throws Error(kUsage) unless output_stride is 8, 16 or 32. `reached`: the stride of the stem.
  explicit StagePlanner(int64_t output_stride, int64_t reached = 4);
  /// Returns the next stage, which has `stride` if the output stride is 32.
  StageGeometry next(int64_t stride);

 private:
  int64_t output_stride_;
  int64_t reached_;
  int64_t dilation_ = 1;
};

}  // namespace palimpsest::models
