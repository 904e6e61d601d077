#include "palimpsest/ops/invertibility/fallback_stats.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/ops/abn.h"

#include <atomic>

namespace palimpsest::ops {
namespace invertibility {
namespace {

std::atomic<int64_t> saved_layers{0}, saved_channels{0}, late_channels{0};

}  // namespace

void count_saved_layer() {
  if (!recomputing()) ++saved_layers;
}
void count_saved_channels(int64_t channels) {
  if (!recomputing()) saved_channels += channels;
}
void count_late_channels(int64_t channels) {
  late_channels += channels;
}

}  // namespace invertibility

AbnFallbackStats abn_fallback_stats() {
  return {invertibility::saved_layers, invertibility::saved_channels, invertibility::late_channels};
}

void reset_abn_fallback_stats() {
  invertibility::saved_layers = 0;
  invertibility::saved_channels = 0;
  invertibility::late_channels = 0;
}

}  // namespace palimpsest::ops
