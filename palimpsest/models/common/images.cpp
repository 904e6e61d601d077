#include "palimpsest/models/common/images.h"

#include "palimpsest/base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace palimpsest::models {
namespace {

/// Returns the first requirement that is not met; "" if all are met.
std::string complaint(const at::Tensor& images) {
  if (images.dim() != 4) return fmt::format("got {} dimensions", images.dim());
  if (images.size(1) != 3) return fmt::format("got {} channels", images.size(1));
  if (images.size(2) == 0 || images.size(3) == 0) return "got images without pixels";
  if (!images.is_floating_point())
    return std::string("got values of type ") + c10::toString(images.scalar_type());
  return "";
}

}  // namespace

void check_images(const std::string& model, const at::Tensor& images) {
  const std::string wrong = complaint(images);
  if (wrong.empty()) return;
  throw Error(
      ErrorKind::kUsage,
      fmt::format("{} needs images of shape (N, 3, H, W) with values of a floating type, {}: shape "
                  "[{}] of {}",
                  model, wrong, fmt::join(images.sizes(), ", "), c10::toString(images.scalar_type())));
}

int64_t least_side(const std::vector<Window>& windows) {
  int64_t side = 1;
  for (auto w = windows.rbegin(); w != windows.rend(); ++w) {
    const int64_t beyond = w->ceil_mode ? w->stride - 1 : 0;
    side = std::max<int64_t>(1, (side - 1) * w->stride + w->kernel - 2 * w->padding - beyond);
  }
  return side;
}

void check_least_side(const std::string& model, const at::Tensor& images, int64_t least) {
  if (std::min(images.size(2), images.size(3)) >= least) return;
  throw Error(ErrorKind::kUsage, fmt::format("{} needs images of at least {} pixels across, because its "
                                             "convolutions and poolings leave no pixel of a smaller one, "
                                             "got {} x {}",
                                             model, least, images.size(2), images.size(3)));
}

}  // namespace palimpsest::models
