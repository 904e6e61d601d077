#pragma once

#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/relative_error.h"
#include "tests/support/temporary_folder.h"

namespace palimpsest::train::testing {

using palimpsest::testing::expect_error;
using palimpsest::testing::FileSizeLimit;
using palimpsest::testing::relative_error;
using palimpsest::testing::TemporaryFolder;

constexpr double kTolerance64 = palimpsest::testing::kReorderedF64;
constexpr double kTolerance32 = palimpsest::testing::kReorderedF32;
constexpr double kNumericGradient = palimpsest::testing::kNumericGradient.relative_l2;

}  // namespace palimpsest::train::testing
