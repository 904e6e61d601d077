#pragma once

#include "palimpsest/train/report.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace palimpsest::train {

/// Maps class ids (H, W) to colours, u8 (H, W, 3). `colors`: u8 (classes, 3); ids without a colour are void,
/// black.
at::Tensor paint(const at::Tensor& ids, const at::Tensor& colors);

/// Returns image, truth and prediction side by side, u8 (H, 3 W + 8, 3); of a labelled image the image alone.
at::Tensor picture_strip(const EvaluationPicture& picture, const at::Tensor& colors);

/// Returns the pictures of the last evaluations with their truth, and the predictions of all runs that
/// evaluated the same picture beside it. "" if no run has pictures.
std::string pictures_html(const Report& report);

}  // namespace palimpsest::train
