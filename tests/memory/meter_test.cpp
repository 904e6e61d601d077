#include "palimpsest/memory/meter.h"

#include "palimpsest/memory/counting_allocator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace palimpsest::memory {
namespace {

TEST(Meter, KeptBytesOfASmallGraphAreWhatAutogradSaves) {
  at::Tensor w = at::ones({1000}, at::kFloat).requires_grad_();  // 4000 bytes
  Meter meter;
  // exp saves its result (4000), the product of w with itself saves only w, the sum saves nothing and is the
  // loss.
  at::Tensor loss = (w * w).exp().sum();
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), 4000 + 4);
  loss.backward();
  EXPECT_EQ(meter.kept_bytes(), 4000 + 4);
}

TEST(Meter, PeakCountsParametersAndWhatLivedForAMoment) {
  at::Tensor w = at::ones({1000}, at::kFloat);
  Meter meter;
  EXPECT_GE(meter.base_bytes(), 4000);
  {
    at::Tensor scratch = at::empty({5000}, at::kFloat);
  }
  at::Tensor y = w + 1;
  meter.forward_done();
  EXPECT_EQ(meter.kept_bytes(), 4000);
  EXPECT_EQ(meter.peak_bytes(), meter.base_bytes() + 20'000);
}

TEST(Meter, ANewMeterStartsANewPeak) {
  Meter first;
  {
    at::Tensor scratch = at::empty({50'000}, at::kFloat);
  }
  EXPECT_EQ(first.peak_bytes(), first.base_bytes() + 200'000);
  Meter second;
  EXPECT_EQ(second.peak_bytes(), second.base_bytes());
}

}  // namespace
}  // namespace palimpsest::memory
