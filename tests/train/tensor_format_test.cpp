#include "palimpsest/train/tensor_format.h"

#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>

namespace palimpsest::train {
namespace {

TEST(TensorFormat, ConvertsFloatingPointAndLeavesCounters) {
  const auto model = testing::make_tiny(1);
  const at::Tensor weight = model->conv1->weight;
  const at::Tensor before = weight.detach().clone();
  const auto format = TensorFormat::parse("f64", /*channels_last=*/true);
  format.convert(*model);
  EXPECT_EQ(model->conv1->weight.scalar_type(), at::kDouble);
  EXPECT_TRUE(model->conv1->weight.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(model->conv1->weight.requires_grad());
  EXPECT_TRUE(model->conv1->weight.is_same(weight)) << "an optimizer made before still finds its parameter";
  EXPECT_TRUE(model->conv1->weight.detach().equal(before.to(at::kDouble)));
  EXPECT_EQ(model->bn1->running_var.scalar_type(), at::kDouble);
  EXPECT_EQ(model->bn1->num_batches_tracked.scalar_type(), at::kLong);

  const void* address = model->conv1->weight.data_ptr();
  format.convert(*model);
  EXPECT_EQ(model->conv1->weight.data_ptr(), address) << "the second time nothing is copied";
}

TEST(TensorFormat, ImagesThatFitAreNotCopied) {
  const at::Tensor images = at::rand({2, 3, 4, 5});
  EXPECT_TRUE(TensorFormat::parse("f32", false).convert(images).is_same(images));
  const at::Tensor converted = TensorFormat::parse("f64", true).convert(images);
  EXPECT_TRUE(converted.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(converted.equal(images.to(at::kDouble)));
}

TEST(TensorFormat, AnUnknownTypeIsAnErrorThatSuggestsTheNearest) {
  testing::expect_error(ErrorKind::kUsage, {"dtype 'f46'", "f64"}, [] { TensorFormat::parse("f46", false); });
}

TEST(TensorFormat, ABatchGoesWithItsTargets) {
  data::Batch batch{at::rand({2, 3, 4, 5}), at::zeros({2, 4, 5}, at::kLong), {}};
  const at::Tensor targets = batch.targets;
  TensorFormat::parse("f64", true).convert(batch);
  EXPECT_EQ(batch.images.scalar_type(), at::kDouble);
  EXPECT_TRUE(batch.targets.is_same(targets));
}

TEST(TensorFormat, ABatchOfBytesIsNormalizedAndItsTargetsCount) {
  data::Batch batch{
      at::arange(2 * 3 * 4 * 5, at::kByte).view({2, 3, 4, 5}), at::full({2, 4, 5}, 255, at::kByte), {}};
  batch.normalization = {{0.5, 0.25, 0}, {0.5, 2, 1}};
  const at::Tensor bytes = batch.images.to(at::kDouble) / 255;
  TensorFormat::parse("f64", true).convert(batch);
  EXPECT_TRUE(batch.images.is_contiguous(at::MemoryFormat::ChannelsLast));
  const double mean[] = {0.5, 0.25, 0}, deviation[] = {0.5, 2, 1};
  for (int64_t c = 0; c < 3; ++c) {
    const at::Tensor error = batch.images.select(1, c) - (bytes.select(1, c) - mean[c]) / deviation[c];
    EXPECT_LT(error.abs().max().item<double>(), palimpsest::testing::kRoundingF32);
  }
  EXPECT_TRUE(batch.targets.equal(at::full({2, 4, 5}, 255, at::kLong)));
}

// The meta device stands for a GPU: a tensor that is not moved there stays on the CPU, and the test sees it.
TEST(TensorFormat, ABatchGoesToTheDevice) {
  TensorFormat format = TensorFormat::parse("f32", true);
  format.device = c10::Device("meta");
  data::Batch batch{at::rand({2, 3, 8, 8}), at::zeros({2, 8, 8}, at::kLong), {}};
  format.convert(batch);
  EXPECT_TRUE(batch.images.is_meta() && batch.images.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_TRUE(batch.targets.is_meta());
}

TEST(TensorFormat, SixteenBitsTakeParametersInF32) {
  testing::expect_error(ErrorKind::kUsage, {"unknown precision 'f15'", "did you mean 'f16'"},
                        [] { TensorFormat::parse("f32", false, "f15"); });
  testing::expect_error(ErrorKind::kUsage, {"precision must be f32 with dtype f64, got bf16"},
                        [] { TensorFormat::parse("f64", false, "bf16"); });
}

}  // namespace
}  // namespace palimpsest::train
