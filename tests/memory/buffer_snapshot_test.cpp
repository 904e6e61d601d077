#include "palimpsest/memory/buffer_snapshot.h"

#include "palimpsest/memory/counting_allocator.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

namespace palimpsest::memory {
namespace {

TEST(BufferSnapshot, RestoresTheBuffersOfASkippedStep) {
  torch::nn::BatchNorm2d norm(3);
  BufferSnapshot snapshot(norm->buffers());
  norm->forward(torch::randn({4, 3, 2, 2}));
  snapshot.save();
  const auto mean = norm->running_mean.clone(), count = norm->num_batches_tracked.clone();
  norm->forward(torch::full({4, 3, 2, 2}, std::numeric_limits<float>::infinity()));
  EXPECT_FALSE(norm->running_mean.isfinite().any().item<bool>()) << "and would stay so";
  for (int times = 0; times < 2; ++times) {
    snapshot.restore();
    EXPECT_TRUE(torch::equal(norm->running_mean, mean));
    EXPECT_TRUE(torch::equal(norm->num_batches_tracked, count));
    norm->forward(torch::randn({4, 3, 2, 2}));
  }
}

TEST(BufferSnapshot, TakesItsMemoryOnceAndIgnoresUndefinedTensors) {
  const at::Tensor buffer = torch::ones({1000});
  const int64_t before = memory_stats().current_bytes;
  BufferSnapshot snapshot({at::Tensor(), buffer});
  EXPECT_EQ(memory_stats().current_bytes - before, 4000);
  for (int times = 0; times < 3; ++times) snapshot.save(), snapshot.restore();
  EXPECT_EQ(memory_stats().current_bytes - before, 4000);
}

TEST(BufferSnapshot, AGraphThatSavedABufferBeforeRemainsValid) {
  auto x = torch::ones({2}).set_requires_grad(true);
  at::Tensor buffer = torch::full({2}, 3.0f);
  const auto y = x * buffer;
  const BufferSnapshot snapshot({buffer});
  buffer.variable_data().fill_(5);  // as libtorch's batch normalization updates its statistics
  snapshot.restore();
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({2}, 3.0f)));
}

}  // namespace
}  // namespace palimpsest::memory
