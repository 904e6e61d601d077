// Convolutions of one input, stacked along channels, against libtorch's in f64.
#include "palimpsest/ops/parallel_convolutions.h"
#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "tests/support/error_of.h"
#include "tests/support/relative_error.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace palimpsest::ops::tests {
namespace {

using testing::relative_error;

/// 1x1, dilated, grouped and unpadded by width, all of one output size.
const std::vector<ConvolutionOptions> kOptions{{{1, 1}, {0, 0}, {1, 1}, 1},
                                               {{1, 1}, {2, 2}, {2, 2}, 1},
                                               {{1, 1}, {1, 1}, {1, 1}, 2},
                                               {{1, 1}, {0, 2}, {1, 1}, 1}};

/// x and the four weights, with values that the dtype holds.
std::vector<at::Tensor> tensors_of(at::ScalarType dtype, bool channels_last, at::IntArrayRef x) {
  torch::manual_seed(9);
  const int64_t c = x[1];
  std::vector<at::Tensor> all{torch::randn(x), torch::randn({5, c, 1, 1}), torch::randn({8, c, 3, 3}),
                              torch::randn({4, c / 2, 3, 3}), torch::randn({3, c, 1, 5})};
  for (at::Tensor& t : all) {
    t = t.to(dtype);
    if (channels_last) t = t.contiguous(at::MemoryFormat::ChannelsLast);
    t.set_requires_grad(true);
  }
  return all;
}

at::Tensor ours(const std::vector<at::Tensor>& t) {
  return parallel_convolutions(t[0], at::TensorList(t).slice(1), kOptions);
}

at::Tensor separate(const std::vector<at::Tensor>& t) {
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < kOptions.size(); ++i) {
    const auto& [stride, padding, dilation, groups] = kOptions[i];
    outputs.push_back(at::conv2d(t[0], t[i + 1], {}, stride, padding, dilation, groups));
  }
  return at::cat(outputs, 1);
}

/// The gradients of `inputs`, then out.
std::vector<at::Tensor> results(const at::Tensor& out, const std::vector<at::Tensor>& inputs,
                                at::ScalarType rounded) {
  torch::manual_seed(10);
  auto all = torch::autograd::grad({out}, inputs, {torch::randn(out.sizes()).to(rounded).to(out.dtype())});
  all.push_back(out.detach());
  return all;
}

std::vector<at::Tensor> in_f64(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> wide;
  for (const at::Tensor& t : tensors) wide.push_back(t.detach().to(at::kDouble).requires_grad_(true));
  return wide;
}

TEST(ParallelConvolutions, HaveTheResultsOfSeparateOnes) {
  // The batch of one part, and one of several parts, whose last part is smaller.
  const std::vector<std::vector<int64_t>> sizes{{3, 8, 9, 10}, {5, 16, 220, 221}, {1, 6, 7, 7}, {0, 8, 9, 9}};
  for (const auto& size : sizes)
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
      for (const bool channels_last : {true, false}) {
        if (size[2] > 100 && dtype == at::kDouble) continue;
        SCOPED_TRACE(c10::str(size, " ", dtype, channels_last ? ", channels-last" : ""));
        const auto t = tensors_of(dtype, channels_last, size), exact = in_f64(t);
        const at::Tensor out = ours(t);
        EXPECT_EQ(out.scalar_type(), dtype);
        if (size[0] > 1) {
          EXPECT_EQ(out.is_contiguous(at::MemoryFormat::ChannelsLast), channels_last);
        }
        const auto got = results(out, t, dtype), want = results(separate(exact), exact, dtype);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].sizes(), want[i].sizes());
          EXPECT_EQ(got[i].scalar_type(), dtype);
          if (size[0] == 0) continue;
          EXPECT_LE(relative_error(got[i], want[i]), testing::tolerance(dtype).relative_l2) << i;
        }
      }
}

TEST(ParallelConvolutions, FollowAutocast) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool in_f32 : {false, true}) {
      SCOPED_TRACE(c10::str(dtype, in_f32 ? ", in f32" : ""));
      auto t = tensors_of(dtype, true, {3, 8, 40, 41});
      const auto exact = in_f64(t);
      for (at::Tensor& one : t) one = one.detach().to(at::kFloat).requires_grad_(true);
      const amp::AutocastGuard guard(at::kCPU, dtype, {.cache = false, .compute_in_f32 = in_f32});
      const at::Tensor out = ours(t);
      EXPECT_EQ(out.scalar_type(), dtype);
      const auto got = results(out, t, dtype), want = results(separate(exact), exact, dtype);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_LE(relative_error(got[i], want[i]), testing::tolerance(dtype).relative_l2) << i;
    }
}

TEST(ParallelConvolutions, ComputeOnlyTheGradientsThatAreNeeded) {
  for (size_t frozen = 0; frozen < 5; ++frozen) {
    auto t = tensors_of(at::kFloat, true, {2, 8, 9, 10});
    t[frozen].set_requires_grad(false);
    const at::Tensor out = ours(t);
    out.sum().backward();
    const auto exact = in_f64(t);
    separate(exact).sum().backward();
    for (size_t i = 0; i < t.size(); ++i) {
      if (i == frozen) {
        EXPECT_FALSE(t[i].grad().defined());
      } else {
        EXPECT_LE(relative_error(t[i].grad(), exact[i].grad()), testing::tolerance(at::kFloat).relative_l2)
            << i;
      }
    }
  }
  auto t = tensors_of(at::kFloat, true, {2, 8, 9, 10});
  for (at::Tensor& one : t) one.set_requires_grad(false);
  EXPECT_FALSE(ours(t).requires_grad());
  EXPECT_LE(relative_error(ours(t), separate(in_f64(t))), testing::tolerance(at::kFloat).relative_l2);
}

TEST(ParallelConvolutions, GiveTheSameGradientsTwice) {
  const auto t = tensors_of(at::kFloat, true, {5, 16, 220, 221});
  const auto first = results(ours(t), t, at::kFloat), second = results(ours(t), t, at::kFloat);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(torch::equal(first[i], second[i])) << i;
}

TEST(ParallelConvolutions, BackwardHoldsOneGradientOfTheInput) {
  if (!memory::counting_allocator_installed()) GTEST_SKIP() << "needs the counting allocator";
  // 16 MiB per image: each part is one image.
  const auto peak_of = [](int64_t images) {
    const auto t = tensors_of(at::kFloat, true, {images, 64, 256, 256});
    const at::Tensor out = ours(t), dout = torch::ones_like(out);
    memory::Meter meter;
    const auto gradients = torch::autograd::grad({out}, t, {dout});
    return meter.peak_bytes() - meter.base_bytes();
  };
  constexpr int64_t kImage = int64_t{16} << 20;
  // What one image needs (libtorch's convolution with AVX2: ten images), the gradients of the seven others, and two parts.
  EXPECT_LE(peak_of(8), peak_of(1) + (7 + 2) * kImage);
}

TEST(ParallelConvolutions, RefuseWhatDoesNotFit) {
  const auto t = tensors_of(at::kFloat, true, {2, 8, 9, 10});
  const auto message = [&](const at::Tensor& x, std::vector<at::Tensor> weights,
                           const std::vector<ConvolutionOptions>& options) {
    return testing::error_of([&] { parallel_convolutions(x, weights, options); });
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(message(t[0], {}, {}), "[parallel_convolutions] one or more weights");
  contains(message(t[0], {t[1]}, kOptions), "got 1 weights and 4 sets of options");
  contains(message(t[0], {t[1], t[2].to(at::kDouble)}, {kOptions[0], kOptions[1]}),
           "[parallel_convolutions] all weights must have one dtype, got Float and Double");
  contains(message(t[0], {t[1], t[2]}, {kOptions[0], kOptions[0]}),
           "[parallel_convolutions] all convolutions must give one spatial size, got [9, 10] and [7, 8]");
  contains(
      message(t[0].to(at::kDouble), {t[1]}, {kOptions[0]}),
      "[parallel_convolutions] without autocast, x must have the dtype of the weights, Float, got Double");
  contains(message(t[0].slice(1, 0, 6), {t[1]}, {kOptions[0]}), "[parallel_convolutions] weight.size(1)");
}

TEST(ParallelConvolutions, RefuseASecondDerivative) {
  const auto t = tensors_of(at::kDouble, false, {2, 8, 9, 10});
  const at::Tensor out = ours(t);
  EXPECT_NE(testing::error_of([&] {
              torch::autograd::grad({out.square().sum()}, {t[0]}, {}, true, /*create_graph=*/true);
            }).find("parallel_convolutions"),
            std::string::npos);
}

}  // namespace
}  // namespace palimpsest::ops::tests
