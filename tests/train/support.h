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

// What two computations of one quantity may differ by, as a share of its norm: rounding, a few hundred sums
// deep.
constexpr double kTolerance64 = 1e-12;
constexpr double kTolerance32 = 1e-5;
constexpr double kNumericGradient = 1e-7;  ///< central differences in f64 with a step of 1e-5

}  // namespace palimpsest::train::testing
