#include "palimpsest/models/common/stage_planner.h"

#include "palimpsest/base/error.h"

namespace palimpsest::models {

StagePlanner::StagePlanner(int64_t output_stride, int64_t reached)
    : output_stride_(output_stride), reached_(reached) {
  if (output_stride == 8 || output_stride == 16 || output_stride == 32) return;
  throw Error(ErrorKind::kUsage, "output stride must be 8, 16 or 32, got " + std::to_string(output_stride));
}

StageGeometry StagePlanner::next(int64_t stride) {
  StageGeometry geometry{stride, dilation_, dilation_};
  if (reached_ * stride > output_stride_) {
    geometry.stride = 1;
    dilation_ *= stride;
    geometry.dilation = dilation_;
  } else {
    reached_ *= stride;
  }
  return geometry;
}

}  // namespace palimpsest::models
