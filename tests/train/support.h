#pragma once

#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/operator_calls.h"
#include "tests/support/relative_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tolerance.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <vector>

namespace palimpsest::train::testing {

using palimpsest::testing::expect_error;
using palimpsest::testing::FileSizeLimit;
using palimpsest::testing::kNumericGradient;
using palimpsest::testing::kNumericStep;
using palimpsest::testing::kReorderedF32;
using palimpsest::testing::kReorderedF64;
using palimpsest::testing::kRoundingF64;
using palimpsest::testing::kSameLoss16Bits;
using palimpsest::testing::OperatorCalls;
using palimpsest::testing::relative_error;
using palimpsest::testing::TemporaryFolder;

inline void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "tensor " << i;
}

}  // namespace palimpsest::train::testing
