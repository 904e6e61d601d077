#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "tests/nn/dense_block_support.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace palimpsest::nn {
namespace {

using memory::memory_stats;

int64_t live_bytes() {
  return memory_stats().current_bytes;
}

constexpr int64_t kPlaneBytes = 2 * 32 * 32 * 4;  // a channel of the images below, f32

DenseBlock memory_block(DenseStrategy form, Strategy strategy) {
  auto options = small_block(form, {strategy, Activation::kLeakyReLU, 0.1});
  options.in_channels(8).layers(6).growth(4);
  return make_block(options, at::kFloat);
}

at::Tensor memory_image() {
  return image(at::kFloat, true, 2, 8, 32, 32).requires_grad_();
}

TEST(DenseBlockMemory, KeepsWhatItsHeaderSays) {
  constexpr int64_t kIn = 8, kLayers = 6, kGrowth = 4;
  int64_t quadratic = 0;  // 2C of all layers
  for (int64_t l = 0; l < kLayers; ++l) quadratic += 2 * (kIn + l * kGrowth);
  const int64_t linear = 5 * kGrowth * kLayers;
  using Key = std::tuple<DenseStrategy, Strategy>;
  // The features are kept once, in the result.
  const std::map<Key, int64_t> channels{
      {{DenseStrategy::kNaive, Strategy::kInplace2}, quadratic + linear + kIn},
      {{DenseStrategy::kSharedGradient, Strategy::kInplace2}, quadratic + linear + kIn},
      {{DenseStrategy::kSharedGradient, Strategy::kStandard},
       quadratic + linear + 4 * kGrowth * kLayers + kIn},
      {{DenseStrategy::kShared, Strategy::kInplace2}, linear + kIn},
      {{DenseStrategy::kShared, Strategy::kStandard}, linear + 4 * kGrowth * kLayers + kIn},
      {{DenseStrategy::kCheckpoint, Strategy::kInplace2}, linear + kIn},
      {{DenseStrategy::kFused, Strategy::kInplace2}, linear + kIn},
      {{DenseStrategy::kFused, Strategy::kStoreY}, linear + kIn},
      {{DenseStrategy::kFused, Strategy::kCheckpoint}, linear + kIn},
  };
  for (const auto& [key, want] : channels) {
    auto block = memory_block(std::get<0>(key), std::get<1>(key));
    const at::Tensor x = memory_image();
    memory::Meter meter;
    const at::Tensor out = block->forward(x);
    meter.forward_done();
    const double got = static_cast<double>(meter.kept_bytes()) / kPlaneBytes;
    // Beside them per-channel vectors, a part of a channel here. The last layer's new features are in the
    // result alone: nobody reads them within the block.
    EXPECT_LE(std::abs(got - static_cast<double>(want)), kGrowth + 1)
        << to_string(std::get<0>(key)) << " " << to_string(std::get<1>(key)) << ": " << got
        << " channels, want " << want;
  }
}

TEST(DenseBlockMemory, OnlyNaiveHoldsGradientsAfterBackward) {
  std::map<DenseStrategy, int64_t> held;
  for (const auto form : kDenseForms) {
    auto block = memory_block(form, Strategy::kInplace2);
    const at::Tensor x = memory_image();
    block->forward(x).sum().backward();  // gradients of parameters and of x
    const int64_t before = live_bytes();
    const at::Tensor loss = block->forward(x).sum();
    loss.backward();
    held[form] = live_bytes() - before;
  }
  EXPECT_GT(held[DenseStrategy::kNaive], 6 * 2 * 8 * kPlaneBytes);
  held.erase(DenseStrategy::kNaive);
  for (const auto& [form, bytes] : held) EXPECT_LE(bytes, 1024) << to_string(form);
}

/// Returns the scratch memory that libtorch takes while it differentiates conv2 of a memory_block: without
/// AVX2 oneDNN unfolds an image, to 9 times its bytes.
int64_t convolution_scratch_bytes() {
  const at::Tensor z = image(at::kFloat, true, 2, 16, 32, 32), df = image(at::kFloat, true, 2, 4, 32, 32),
                   weight = torch::ones({4, 16, 3, 3});
  int64_t most = 0;
  for (const bool of_input : {true, false}) {
    memory::reset_peak();
    const auto results = at::convolution_backward(df, z, weight, std::nullopt, {1, 1}, {1, 1}, {1, 1}, false,
                                                  {0, 0}, 1, {of_input, !of_input, false});
    most = std::max(most, memory_stats().peak_bytes - live_bytes());
  }
  return most;
}

TEST(DenseBlockMemory, FusedNeedsOneGradientBufferAndTwelveChannelsOfGrowthInBackward) {
  auto block = memory_block(DenseStrategy::kFused, Strategy::kStoreY);
  const at::Tensor x = memory_image();
  for (int i = 0; i < 2; ++i) {  // the first pass makes gradients of parameters
    block->zero_grad(/*set_to_none=*/false);
    const at::Tensor out = block->forward(x);
    const at::Tensor gradient = torch::ones_like(out);
    const int64_t before = live_bytes();
    memory::reset_peak();
    out.backward(gradient);
    if (i == 0) continue;
    const int64_t buffer = out.numel() * 4;
    const int64_t peak = memory_stats().peak_bytes - before, scratch = convolution_scratch_bytes();
    EXPECT_LE(peak - scratch, buffer + (12 * 4 + 8 + 2) * kPlaneBytes);
  }
}

TEST(DenseBlockMemory, TwoHundredBlocksLeaveNothingBehind) {
  for (const auto form : kDenseForms) {
    const auto use = [&](int i) {
      auto options = small_block(form, {Strategy::kInplace2, Activation::kLeakyReLU, 0.1});
      options.dropout(i % 2 ? 0.1 : 0);
      DenseBlock block(options);
      const at::Tensor out = block->forward(image(at::kFloat).requires_grad_());
      if (i % 3) out.sum().backward();
    };
    for (int i = 0; i < 6; ++i) use(i);
    const int64_t before = live_bytes();
    for (int i = 0; i < 200; ++i) use(i);
    EXPECT_EQ(live_bytes(), before) << to_string(form);
  }
}

TEST(DenseBlockMemory, AnExceptionInForwardOrBackwardLeavesNothingBehind) {
  for (const auto form : kDenseForms) {
    auto block = memory_block(form, Strategy::kInplace2);
    const at::Tensor x = memory_image();
    block->forward(x).sum().backward();
    const int64_t before = live_bytes();
    int64_t least = 0, refused_forward = 0, refused_backward = 0;
    for (int64_t planes = 20; planes < 700; planes += 1 + planes / 8) {
      memory::set_memory_limit(before + planes * kPlaneBytes);
      bool forward = true;
      try {
        const at::Tensor loss = block->forward(x).sum();
        forward = false;
        loss.backward();
        least = least == 0 ? planes : least;
      } catch (const c10::OutOfMemoryError&) {
        ++(forward ? refused_forward : refused_backward);
      }
      memory::set_memory_limit(0);
      EXPECT_EQ(live_bytes(), before) << to_string(form) << ", " << planes << " channels";
    }
    EXPECT_GT(least, 0) << to_string(form);
    EXPECT_GT(refused_forward, 1) << to_string(form);
    // Not all other forms need more memory in backward than in forward.
    if (form == DenseStrategy::kFused) {
      EXPECT_GT(refused_backward, 0);
    }
  }
}

}  // namespace
}  // namespace palimpsest::nn
