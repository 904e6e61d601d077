#pragma once

#include <cstdint>

/// The counters behind abn_fallback_stats (ops/abn.h). A recomputed forward pass does not count again.
namespace palimpsest::ops::invertibility {

void count_saved_layer();
void count_saved_channels(int64_t channels);

}  // namespace palimpsest::ops::invertibility
