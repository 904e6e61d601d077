#include "palimpsest/train/rethrow.h"

#include "tests/train/support.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

namespace palimpsest::train {
namespace {

TEST(Rethrow, ExhaustedMemoryIsExplainedAndOtherErrorsPass) {
  const auto explained = [](auto raise) {
    return [raise] {
      try {
        raise();
      } catch (...) {
        rethrow_explained("step 1");
      }
    };
  };
  testing::expect_error(
      ErrorKind::kMemory, {"step 1", "you tried to allocate 5 bytes"}, explained([] {
        TORCH_CHECK(false,
                    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes.\nmore");
      }));
  testing::expect_error(ErrorKind::kMemory, {"step 1"}, explained([] { throw std::bad_alloc(); }));
  for (const char* reason :
       {"CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"})
    testing::expect_error(ErrorKind::kMemory, {"step 1", reason},
                          explained([&] { TORCH_CHECK(false, reason, " in a call"); }));
  testing::expect_error(ErrorKind::kData, {"unreadable"},
                        explained([] { throw Error(ErrorKind::kData, "unreadable"); }));
  EXPECT_THROW(explained([] { throw std::logic_error("a bug"); })(), std::logic_error);
  EXPECT_THROW(explained([] { TORCH_CHECK(false, "another"); })(), c10::Error);
}

}  // namespace
}  // namespace palimpsest::train
