#include "palimpsest/base/error.h"

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Error, CarriesItsKindAsTheExitCode) {
  const Error error(ErrorKind::kCheckpoint, "truncated");
  EXPECT_EQ(error.kind(), ErrorKind::kCheckpoint);
  EXPECT_EQ(error.exit_code(), 4);
  EXPECT_STREQ(error.what(), "truncated");
}

}  // namespace
}  // namespace palimpsest
