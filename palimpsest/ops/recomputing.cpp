#include "palimpsest/ops/recomputing.h"

#include <utility>

namespace palimpsest::ops {
namespace {

thread_local bool recomputing_now = false;

}  // namespace

bool recomputing() noexcept {
  return recomputing_now;
}

RecomputingGuard::RecomputingGuard() noexcept : before_(std::exchange(recomputing_now, true)) {}

RecomputingGuard::~RecomputingGuard() {
  recomputing_now = before_;
}

}  // namespace palimpsest::ops
