#include "palimpsest/memory/recompute.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/memory/segment.h"

#include <c10/core/GradMode.h>

#include <memory>
#include <optional>

namespace palimpsest::memory {

std::vector<at::Tensor> recompute_list(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> fn,
    const std::vector<at::Tensor>& inputs, const RecomputeOptions& options) {
  // Within another segment that is run again, this "first" run is a second one for the buffers.
  std::optional<BuffersGuard> unchanged_buffers;
  if (recomputing()) unchanged_buffers.emplace(options.buffers);
  if (!c10::GradMode::is_enabled()) return fn(inputs);
  return std::make_shared<Segment>(std::move(fn), inputs, options)->first_run(inputs);
}

}  // namespace palimpsest::memory
