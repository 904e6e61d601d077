#include "palimpsest/ops/synchronization/statistics.h"

#include "palimpsest/base/segment_log.h"
#include "palimpsest/kernels/cuda/group_statistics.h"
#include "palimpsest/ops/common/backend.h"
#include "palimpsest/ops/common/cuda_call.h"
#include "palimpsest/ops/synchronization/process_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace palimpsest::ops::synchronization {
namespace {

bool on_cuda(const at::Tensor& t) {
  return backend_of("abn", t) == Backend::kCuda;
}

at::Tensor part_of(const OwnBatch& own) {
  const int64_t c = own.channels;
  const auto options = own.like.options().dtype(at::kDouble);
  if (own.values == 0) return at::zeros({2 * c + 1}, options);
  at::Tensor part = at::empty({2 * c + 1}, options);
  auto* const values = part.mutable_data_ptr<double>();
  own.statistics(values, values + c);
  if (on_cuda(part))
    part.narrow(0, 2 * c, 1).fill_(static_cast<double>(own.values));
  else
    values[2 * c] = static_cast<double>(own.values);
  return part;
}

}  // namespace

GroupStatistics whole_batch(const std::string& group, const OwnBatch& own, double eps, DType running_dtype,
                            const kernels::RunningStatistics& running) {
  return SegmentLog::get([&] {
    const at::Tensor all = all_gather(part_of(own), group);
    const auto vector = [&](int64_t count) { return at::empty({count}, all.options()); };
    GroupStatistics merged{vector(own.channels), vector(own.channels), vector(own.channels), vector(1)};
    const kernels::GroupParts parts{all.const_data_ptr<double>(), all.size(0), own.channels};
    const kernels::GroupStatistics pointers{
        merged.mean.mutable_data_ptr<double>(), merged.var.mutable_data_ptr<double>(),
        merged.inv_std.mutable_data_ptr<double>(), merged.count.mutable_data_ptr<double>()};
    // A rank with more values knows enough, and does not wait for its GPU.
    bool reads_count = own.values <= 1;
    if (on_cuda(all)) {
      const CudaCall call(all);
      kernels::cuda::merge_statistics(parts, eps, pointers, running_dtype, running, call.stream());
      reads_count = reads_count && !call.is_capturing();  // nobody may wait for what is only recorded
    } else {
      kernels::cpu::merge_statistics(parts, eps, pointers, running_dtype, running);
    }
    TORCH_CHECK_VALUE(!reads_count || merged.count.item<double>() != 1,
                      "[abn] training needs more than one value per channel, got one in all ", all.size(0),
                      " ranks of the group '", group,
                      "' together; use a larger batch, or frozen statistics (training = false)");
    return merged;
  });
}

}  // namespace palimpsest::ops::synchronization
