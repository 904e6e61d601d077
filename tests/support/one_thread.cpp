// For programs over small tensors: waking a second thread takes up to ten times as long as the work, if other
// tests use the cores. Tests of several threads set their number.
#include "tests/support/main.h"

#include <ATen/Parallel.h>

namespace palimpsest::testing {
namespace {

const Prepare kOneThread{[] {
  at::set_num_threads(1);
  return 0;
}};

}  // namespace
}  // namespace palimpsest::testing
