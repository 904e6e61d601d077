#include "palimpsest/memory/recompute.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/memory/buffer_snapshot.h"
#include "palimpsest/memory/recompute/segment.h"

#include <c10/core/GradMode.h>
#include <c10/util/ScopeExit.h>

#include <memory>
#include <optional>

namespace palimpsest::memory {

std::vector<at::Tensor> recompute_list(
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> fn,
    const std::vector<at::Tensor>& inputs, const RecomputeOptions& options) {
  // In the second run of an outer segment, the buffers have seen this batch already.
  std::optional<BufferSnapshot> buffers;
  if (recomputing()) buffers.emplace(options.buffers);
  const auto restore_buffers = c10::make_scope_exit([&] {
    if (buffers) buffers->restore();
  });
  if (!c10::GradMode::is_enabled()) return fn(inputs);
  return std::make_shared<Segment>(std::move(fn), inputs, options)->first_run(inputs);
}

}  // namespace palimpsest::memory
