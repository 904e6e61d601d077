#pragma once

#include "palimpsest/kernels/channel_slots.h"
#include "palimpsest/kernels/cuda/device/reduce.cuh"
#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/formulas/invertibility.h"

/// The report of a choice of channels (kernels/channel_slots.h), written by one block.
namespace palimpsest::kernels::cuda {

/// A choice as kernels read it, without a residual.
struct SlotArguments {
  ChannelSlots tensors;  ///< no report: there is nothing to choose
  InvertibilityCriterion criterion;
};

/// Counts the channels' outlooks, which outlook_of(c) returns, writes them to the report, and returns the
/// number of wanted channels, in every thread. All kBlock threads of the block call it.
template <int kBlock, class OutlookOf>
__device__ __forceinline__ int64_t report_outlooks(const ChannelSlots& tensors, int64_t channels,
                                                   const OutlookOf& outlook_of) {
  int counts[2] = {0, 0};
  for (int64_t c = threadIdx.x; c < channels; c += kBlock) {
    const Outlook outlook = outlook_of(c);
    counts[0] += outlook == Outlook::kNonInvertible ? 1 : 0;
    counts[1] += outlook == Outlook::kInvertible ? 0 : 1;
  }
  block_sum<kBlock>(counts);
  const int64_t wanted = counts[0], late = wanted - tensors.slots;
  if (threadIdx.x == 0) {
    tensors.report->counts = pack_counts({wanted, counts[1]});
    if (tensors.counts_late && late > 0)
      atomicAdd(&tensors.report->late, static_cast<unsigned long long>(late));
  }
  return wanted;
}

/// Returns the outlook of channel c, whose residual has the root mean square `rms`. T: the parameters' type.
template <class T>
__device__ __forceinline__ Outlook outlook_of_channel(const ChannelSlots& tensors,
                                                      const InvertibilityCriterion& criterion, int64_t c,
                                                      double rms) {
  return criterion.outlook(value_or(static_cast<const T*>(tensors.weight), c, 1),
                           value_or(static_cast<const T*>(tensors.bias), c, 0), rms, tensors.counts_near);
}

}  // namespace palimpsest::kernels::cuda
