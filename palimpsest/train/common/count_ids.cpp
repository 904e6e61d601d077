#include "palimpsest/train/common/count_ids.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

namespace palimpsest::train {
namespace {

// Most pixels have one of a few pairs of classes, and additions to one number follow each other: each id has
// up to so many counters, as long as all together are few.
constexpr int64_t kMostCopies = 64, kFewCounters = 1 << 16;

}  // namespace

at::Tensor count_ids(const at::Tensor& ids, int64_t bins) {
  return ids.is_cpu() ? ids.flatten().bincount({}, bins) : count_ids_by_adding(ids, bins);
}

at::Tensor count_ids_by_adding(const at::Tensor& ids, int64_t bins) {
  const int64_t copies = std::clamp<int64_t>(kFewCounters / bins, 1, kMostCopies);
  at::Tensor places = ids.flatten();
  if (copies > 1)
    places = places.mul(copies).add_(at::arange(places.numel(), places.options()).remainder_(copies));
  const at::Tensor ones = at::ones({1}, places.options()).expand(places.sizes());
  return at::zeros({bins * copies}, places.options())
      .scatter_add_(0, places, ones)
      .view({bins, copies})
      .sum(1);
}

at::Tensor wrong_targets(const at::Tensor& targets, int64_t classes, int64_t ignore_id) {
  return targets.lt(0).logical_or_(targets.ge(classes)).logical_and_(targets.ne(ignore_id));
}

at::Tensor counted_targets(const at::Tensor& targets, int64_t classes, int64_t ignore_id) {
  return targets.ge(0).logical_and_(targets.lt(classes)).logical_and_(targets.ne(ignore_id));
}

at::Tensor first_wrong_label(const at::Tensor& targets, const at::Tensor& wrong) {
  const auto options = targets.options().dtype(at::kDouble);
  at::Tensor none = at::full({}, std::numeric_limits<double>::quiet_NaN(), options);
  if (targets.numel() == 0) return none;
  const at::Tensor flat = wrong.flatten();
  const at::Tensor place = flat.to(at::kByte).argmax(0, /*keepdim=*/true);  // of equal values the first
  return at::where(flat.any(), targets.flatten().index_select(0, place).squeeze(0).to(at::kDouble), none);
}

}  // namespace palimpsest::train
