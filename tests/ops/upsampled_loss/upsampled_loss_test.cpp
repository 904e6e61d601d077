#include "palimpsest/ops/upsampled_loss.h"

#include "palimpsest/memory/meter.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <vector>

// The values of every size, layout and rule are compared with loops in tests/kernels/upsampled_loss_test.cpp.
namespace palimpsest::ops::tests {
namespace {

using Options = UpsampledCrossEntropyOptions;

at::Tensor some_targets(at::IntArrayRef size, int64_t classes) {
  const at::Tensor targets = at::randint(classes, size, at::kLong);
  return targets.masked_fill(at::rand(size) < 0.1, 255);
}

/// Returns the same from libtorch's operators, in f64.
at::Tensor theirs(const at::Tensor& logits, const at::Tensor& targets, const Options& o) {
  const at::Tensor z =
      at::upsample_bilinear2d(logits.to(at::kDouble), targets.sizes().slice(1), o.align_corners);
  const auto weight = o.weight ? std::optional(o.weight->to(at::kDouble)) : std::nullopt;
  return at::cross_entropy_loss(z, targets.to(at::kLong), weight, at::Reduction::Mean, o.ignore_index,
                                o.label_smoothing);
}

double difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return ((a.to(at::kDouble) - wide).abs().max() / wide.abs().max().clamp_min(1e-30)).item<double>();
}

double tolerance(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 1e-12;
    case at::kHalf:
      return 6e-4;
    case at::kBFloat16:
      return 5e-3;
    default:
      return 1e-6;
  }
}

TEST(UpsampledCrossEntropy, IsLibtorchsOfTheUpsampledLogits) {
  at::manual_seed(1);
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
      for (const bool align_corners : {false, true})
        for (const bool extras : {false, true}) {
          Options options{.align_corners = align_corners};
          if (extras) {
            options.weight = at::rand({19});
            options.label_smoothing = 0.2;
          }
          const at::Tensor values = (at::randn({3, 19, 6, 9}) * 3).to(type).contiguous(format);
          const at::Tensor targets = some_targets({3, 50, 41}, 19);
          const at::Tensor x = values.clone().requires_grad_(), y = values.clone().requires_grad_();
          const UpsampledCrossEntropy ours = upsampled_cross_entropy(x, targets, options);
          const at::Tensor want = theirs(y, targets, options);
          EXPECT_LE(difference(ours.loss, want), 1e-6);
          EXPECT_EQ(ours.loss.scalar_type(), type == at::kDouble ? at::kDouble : at::kFloat);
          EXPECT_FALSE(ours.weight.requires_grad());
          (ours.loss * 3).backward();
          (want * 3).backward();
          EXPECT_LE(difference(x.grad(), y.grad()), tolerance(type)) << type << format << extras;
          EXPECT_EQ(x.grad().scalar_type(), type);
          EXPECT_EQ(x.grad().strides(), values.strides());
          const at::NoGradGuard no_grad;
          EXPECT_TRUE(upsampled_cross_entropy(x, targets, options).loss.equal(ours.loss));
        }
}

TEST(UpsampledCrossEntropy, TakesAnyStrides) {
  const at::Tensor base = at::randn({2, 12, 10, 7}), targets = some_targets({2, 40, 20}, 7);
  const at::Tensor view = base.permute({0, 3, 1, 2}).narrow(2, 1, 11).narrow(3, 0, 9);
  const at::Tensor x = view.detach().requires_grad_(), y = view.contiguous().detach().requires_grad_();
  const at::Tensor wide = targets.repeat({1, 1, 2}).narrow(2, 0, 20);
  upsampled_cross_entropy(x, wide).loss.backward();
  upsampled_cross_entropy(y, targets.contiguous()).loss.backward();
  EXPECT_LE(difference(x.grad(), y.grad()), 1e-6);
}

TEST(UpsampledCrossEntropy, BackwardMayRunTwiceAndNeverWritesWhatItSaved) {
  const at::Tensor x = at::randn({2, 5, 4, 4}).requires_grad_(), targets = some_targets({2, 16, 16}, 5);
  const at::Tensor loss = upsampled_cross_entropy(x, targets, {.bootstrap_share = 0.25}).loss;
  const auto first = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({loss * 2}, {x}, {}, /*retain_graph=*/true);
  EXPECT_TRUE(second[0].equal(first[0] * 2));
  EXPECT_THROW(torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true), c10::Error);
}

TEST(UpsampledCrossEntropy, WithoutPixelsOrImagesIsZero) {
  for (const int64_t n : {0, 2}) {
    const at::Tensor x = at::randn({n, 5, 4, 4}).requires_grad_();
    const auto result = upsampled_cross_entropy(x, at::full({n, 8, 8}, 255, at::kLong));
    result.loss.backward();
    EXPECT_EQ(result.loss.item<float>(), 0);
    EXPECT_EQ(result.weight.item<double>(), 0);
    EXPECT_EQ(x.grad().abs().sum().item<float>(), 0);
  }
}

TEST(UpsampledCrossEntropy, NeedsATwentiethOfTheMemoryOfLibtorchs) {
  for (const auto& [n, classes] : {std::pair<int64_t, int64_t>{2, 21}, {8, 2}}) {
    const at::Tensor x = at::randn({n, classes, 32, 32}).requires_grad_(),
                     targets = some_targets({n, 256, 256}, classes);
    const auto bytes = [&](const auto& loss) {
      memory::Meter meter;
      const at::Tensor value = loss();
      meter.forward_done();
      value.backward();
      x.mutable_grad() = at::Tensor();
      return meter.kept_bytes() + meter.peak_bytes() - meter.base_bytes();
    };
    const auto stock = [&](double share) {
      const at::Tensor losses = at::cross_entropy_loss(at::upsample_bilinear2d(x, {256, 256}, false), targets,
                                                       {}, at::Reduction::None, 255)
                                    .flatten(1);
      return share == 1 ? losses.mean() : std::get<0>(losses.topk(losses.size(1) / 4, 1)).mean();
    };
    for (const double share : {1.0, 0.25})
      EXPECT_LE(bytes([&] { return upsampled_cross_entropy(x, targets, {.bootstrap_share = share}).loss; }),
                bytes([&] { return stock(share); }) / 20)
          << classes << " classes, share " << share;
  }
}

TEST(UpsampledCrossEntropy, SaysWhatWasRequiredAndGiven) {
  const at::Tensor x = at::randn({2, 5, 4, 4}), t = at::zeros({2, 8, 8}, at::kLong);
  const auto message = [](const auto& call) {
    try {
      call();
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("nothing was thrown");
  };
  const auto expect = [&](const std::string& part, const at::Tensor& logits, const at::Tensor& targets,
                          const Options& options = {}) {
    const std::string text = message([&] { upsampled_cross_entropy(logits, targets, options); });
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_EQ(text.find("[upsampled_cross_entropy]"), 0u) << text;
  };
  expect("targets must be (N, H, W)", x, at::zeros({2, 8}, at::kLong));
  expect("targets must be (N, H, W)", x, at::zeros({3, 8, 8}, at::kLong));
  expect("int64 or uint8, got float32", x, at::zeros({2, 8, 8}));
  expect("of a floating type", at::zeros({2, 5, 4, 4}, at::kInt), t);
  expect("at least one class", at::zeros({2, 0, 4, 4}), t);
  expect("at least one pixel", x, at::zeros({2, 0, 8}, at::kLong));
  expect("one number per class, 5, got shape [4]", x, t, {.weight = at::ones({4})});
  expect("0 or in [1e-30, 1e30], got -1", x, t, {.weight = -at::ones({5})});
  expect("weight has no gradient", x, t, {.weight = at::ones({5}).requires_grad_()});
  expect("label_smoothing must be in [0, 1], got 1.5", x, t, {.label_smoothing = 1.5});
  expect("bootstrap_share must be in (0, 1], got 0", x, t, {.bootstrap_share = 0});
  expect("bootstrap_probability must be in (0, 1], got 2", x, t, {.bootstrap_probability = 2});
  expect("a class in [0, 5) or ignore_index 255, got 7", x, t + 7);
  EXPECT_THROW(upsampled_cross_entropy(x, t + 7), c10::IndexError);
}

TEST(UpsampledArgmax, IsLibtorchsOfTheUpsampledLogits) {
  at::manual_seed(2);
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16})
    for (const bool align_corners : {false, true}) {
      const at::Tensor x = at::randn({2, 21, 5, 8}).to(type);
      const at::Tensor wide = at::upsample_bilinear2d(x.to(at::kDouble), {40, 63}, align_corners);
      const at::Tensor ids = upsampled_argmax(x, {40, 63}, align_corners);
      EXPECT_EQ(ids.scalar_type(), at::kLong);
      const double loss = (wide.amax(1) - wide.gather(1, ids.unsqueeze(1)).squeeze(1)).max().item<double>();
      EXPECT_LE(loss, 1e-6) << type;
    }
  EXPECT_EQ(upsampled_argmax(at::randn({0, 3, 2, 2}), {4, 4}).sizes(), at::IntArrayRef({0, 4, 4}));
  EXPECT_THROW(upsampled_argmax(at::randn({2, 3, 2, 2}), {4}), c10::Error);
  EXPECT_THROW(upsampled_argmax(at::randn({3, 2, 2}), {4, 4}), c10::Error);
}

}  // namespace
}  // namespace palimpsest::ops::tests
