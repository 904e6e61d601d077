// For programs that test a full disk by a limit on file sizes (RLIMIT_FSIZE): a write beyond it must fail,
// not kill.
#include "tests/support/main.h"

#include <csignal>

namespace palimpsest::testing {
namespace {

const Prepare kFileSizeSignal{[] {
  std::signal(SIGXFSZ, SIG_IGN);
  return 0;
}};

}  // namespace
}  // namespace palimpsest::testing
