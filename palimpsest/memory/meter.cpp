#include "palimpsest/memory/meter.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/live_allocator.h"

namespace palimpsest::memory {

Meter::Meter() {
  require_counting_allocator("Meter");
  base_ = memory_stats().current_bytes;
  reset_peak();
}

void Meter::forward_done() {
  kept_ = memory_stats().current_bytes - base_;
}

int64_t Meter::kept_bytes() const {
  return kept_;
}
int64_t Meter::peak_bytes() const {
  return memory_stats().peak_bytes;
}
int64_t Meter::base_bytes() const {
  return base_;
}

}  // namespace palimpsest::memory
