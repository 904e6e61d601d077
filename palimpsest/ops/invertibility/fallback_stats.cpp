#include "palimpsest/ops/invertibility/fallback_stats.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/invertibility/slot_plan.h"

#include <atomic>

namespace palimpsest::ops {
namespace invertibility {
namespace {

std::atomic<int64_t> saved_layers{0}, saved_channels{0}, late_before{0};  // late_before: until the last reset

}  // namespace

void count_saved_layer() {
  if (!recomputing()) ++saved_layers;
}
void count_saved_channels(int64_t channels) {
  if (!recomputing()) saved_channels += channels;
}

}  // namespace invertibility

AbnFallbackStats abn_fallback_stats() {
  return {invertibility::saved_layers, invertibility::saved_channels,
          invertibility::late_channels() - invertibility::late_before};
}

void reset_abn_fallback_stats() {
  invertibility::saved_layers = 0;
  invertibility::saved_channels = 0;
  invertibility::late_before = invertibility::late_channels();
}

}  // namespace palimpsest::ops
