// For programs that measure bytes: the counting allocator is installed before any tensor. Twice, as a second
// call does nothing.
#include "palimpsest/memory/counting_allocator.h"
#include "tests/support/main.h"

namespace palimpsest::testing {
namespace {

const Prepare kCountingAllocator{[] {
  memory::install_counting_allocator();
  memory::install_counting_allocator();
  return 0;
}};

}  // namespace
}  // namespace palimpsest::testing
