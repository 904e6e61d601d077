#include "palimpsest/ops/max_pool.h"

#include "palimpsest/memory/counting_allocator.h"
#include "tests/ops/abn_case.h"

#include <gtest/gtest.h>

#include <limits>

namespace palimpsest::ops::tests {
namespace {

using memory::memory_stats;
using Slice = at::indexing::Slice;

struct PoolCase {
  std::vector<int64_t> kernel_size, stride, padding, dilation;
  bool ceil_mode = false;
};

const std::vector<PoolCase> kWindows = {{{3}, {2}, {1}, {1}},
                                        {{2}, {}, {0}, {1}},
                                        {{3}, {1}, {1}, {1}, true},
                                        {{3, 2}, {2, 3}, {1, 0}, {1, 2}, true},
                                        {{5, 3}, {2, 2}, {2, 1}, {2, 1}},
                                        {{7, 7}, {7, 7}, {3, 3}, {1, 1}, true}};

at::Tensor ours(const at::Tensor& x, const PoolCase& c) {
  return ops::max_pool2d(x, c.kernel_size, c.stride, c.padding, c.dilation, c.ceil_mode);
}
at::Tensor theirs(const at::Tensor& x, const PoolCase& c) {
  return at::max_pool2d(x, c.kernel_size, c.stride, c.padding, c.dilation, c.ceil_mode);
}

/// Returns whether all values have the same bytes; any NaN equals any other NaN.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && at::isnan(a).equal(at::isnan(b)) &&
         at::nan_to_num(a).equal(at::nan_to_num(b)) &&
         at::signbit(at::nan_to_num(a)).equal(at::signbit(at::nan_to_num(b)));
}

struct Pooled {
  at::Tensor z, dx;
};
template <class Pool>
Pooled run(const at::Tensor& x, const at::Tensor& dz, const Pool& pool) {
  const at::Tensor leaf = x.detach().requires_grad_();
  const at::Tensor z = pool(leaf);
  return {z.detach(), torch::autograd::grad({z}, {leaf}, {dz})[0]};
}

/// Expects libtorch's values, gradients, strides.
void expect_libtorchs(const at::Tensor& x, const PoolCase& c) {
  // Eighths, whose sums are exact in 16 bits too: there libtorch rounds after every addition.
  const at::Tensor dz = torch::randint(-8, 8, theirs(x, c).sizes()).div(8).to(x.scalar_type());
  const Pooled got = run(x, dz, [&](const at::Tensor& t) { return ours(t, c); });
  const Pooled want = run(x, dz, [&](const at::Tensor& t) { return theirs(t, c); });
  EXPECT_TRUE(same(got.z, want.z));
  EXPECT_TRUE(same(got.dx, want.dx));
  EXPECT_EQ(got.z.strides(), want.z.strides());
  EXPECT_EQ(got.dx.scalar_type(), x.scalar_type());
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(same(ours(x, c), want.z));
  }
}

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

TEST(MaxPool, IsLibtorchsInEveryTypeLayoutAndWindow) {
  torch::manual_seed(1);
  for (const auto type : kTypes)
    for (const auto& window : kWindows)
      for (const int64_t channels : {1, 35}) {
        const at::Tensor x = torch::randn({2, channels, 17, 34}).to(type);
        SCOPED_TRACE(::testing::Message()
                     << type << " " << channels << " channels, kernel " << window.kernel_size[0]);
        expect_libtorchs(x, window);
        expect_libtorchs(x.contiguous(at::MemoryFormat::ChannelsLast), window);
        expect_libtorchs(x.slice(1, 0, 1), window);
        expect_libtorchs(x.transpose(2, 3), window);
        expect_libtorchs(x.slice(3, 0, 34, 2), window);
        expect_libtorchs(x.slice(0, 1, 2), window);
        expect_libtorchs(x.slice(0, 0, 0), window);
        expect_libtorchs(x[1], window);
        expect_libtorchs(x[1].permute({0, 2, 1}), window);
        expect_libtorchs(x.contiguous(at::MemoryFormat::ChannelsLast)[1], window);
      }
}

TEST(MaxPool, TiesNaNsAndInfinitiesAreLibtorchs) {
  torch::manual_seed(2);
  const double kInfinity = std::numeric_limits<double>::infinity(),
               kNaN = std::numeric_limits<double>::quiet_NaN();
  const at::Tensor kinds =
      torch::tensor({-kInfinity, -kInfinity, -0.0, 0.0, 1.0, kInfinity, kNaN}, at::kDouble);
  for (const auto type : kTypes)
    for (const int64_t some : {7, 6, 4, 2})
      for (const auto& window : kWindows) {
        const at::Tensor x = kinds.index({torch::randint(0, some, {2, 20, 19, 23})}).to(type);
        expect_libtorchs(x, window);
        expect_libtorchs(x.contiguous(at::MemoryFormat::ChannelsLast), window);
      }
}

// In f32 and f64 sums of gradients are libtorch's to the bit whatever the values, for they are added in its
// order; in 16 bits ours are rounded once and so are no farther from the truth.
TEST(MaxPool, OverlappingGradientsAreAddedInLibtorchsOrder) {
  torch::manual_seed(3);
  const PoolCase window{{5}, {1}, {2}, {1}};
  for (const auto type : kTypes)
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      const at::Tensor x = torch::randn({2, 40, 20, 21}).to(type).contiguous(format),
                       dz = torch::randn_like(x);
      const auto pool = [&](const at::Tensor& t) { return ours(t, window); };
      const at::Tensor got = run(x, dz, pool).dx;
      const at::Tensor want = run(x, dz, [&](const at::Tensor& t) { return theirs(t, window); }).dx;
      if (at::isReducedFloatingType(type)) {
        const at::Tensor truth = run(x.to(at::kDouble), dz.to(at::kDouble), pool).dx;
        EXPECT_LT(relative_error(got, truth), relative_error(want, truth));
        EXPECT_TRUE(got.equal(truth.to(at::kFloat).to(type)));
      } else {
        EXPECT_TRUE(got.equal(want));
      }
    }
}

TEST(MaxPool, KeepsOneByteAnOutputAndNothingOfItsInput) {
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const at::Tensor leaf = torch::randn({2, 64, 32, 32}).contiguous(format).requires_grad_();
    const int64_t before = memory_stats().current_bytes;
    at::Tensor x = leaf + 0.0;
    at::Tensor z = ops::max_pool2d(x, 3, 2, 1);
    x.reset();
    EXPECT_EQ(memory_stats().current_bytes - before, z.numel() * 5) << "z and a byte each";
    at::Tensor loss = z.sum();
    z.reset();
    EXPECT_EQ(memory_stats().current_bytes - before, 2 * 64 * 16 * 16 + 4) << "the bytes, and the loss";
    loss.backward();
    EXPECT_TRUE(leaf.grad().defined());
  }
}

TEST(MaxPool, WithoutAGradientNothingIsKept) {
  const at::Tensor x = torch::randn({2, 64, 32, 32});
  const int64_t before = memory_stats().current_bytes;
  const at::Tensor z = ops::max_pool2d(x, 3, 2, 1);
  EXPECT_EQ(memory_stats().current_bytes - before, z.numel() * 4);
  EXPECT_FALSE(z.requires_grad());
}

TEST(MaxPool, AThousandForwardPassesWithoutBackwardLeaveNothingBehind) {
  const at::Tensor leaf = torch::randn({2, 8, 16, 16}).requires_grad_();
  ops::max_pool2d(leaf, 3, 2, 1);
  const int64_t before = memory_stats().current_bytes;
  for (int i = 0; i < 1000; ++i) ops::max_pool2d(leaf + 0.0, 3, 2, 1);
  EXPECT_EQ(memory_stats().current_bytes, before);
}

TEST(MaxPool, ItsGradientMayComeInAnyLayout) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({2, 8, 12, 10});
  const PoolCase window = kWindows[0];
  const at::Tensor dz = torch::randn({2, 8, 6, 5});
  const auto pool = [&](const at::Tensor& t) { return ours(t, window); };
  const at::Tensor want = run(x, dz, pool).dx;
  EXPECT_TRUE(run(x, dz.contiguous(at::MemoryFormat::ChannelsLast), pool).dx.equal(want));
  EXPECT_TRUE(run(x.contiguous(at::MemoryFormat::ChannelsLast), dz, pool).dx.equal(want));
  EXPECT_TRUE(run(x, dz.transpose(2, 3).contiguous().transpose(2, 3), pool).dx.equal(want));
  const at::Tensor one = torch::ones({}).expand({2, 8, 6, 5});
  EXPECT_TRUE(run(x, one, pool).dx.equal(run(x, one.contiguous(), pool).dx));
}

TEST(MaxPool, ASecondDerivativeIsRefused) {
  const at::Tensor x = torch::randn({1, 2, 8, 8}).requires_grad_();
  const at::Tensor z = ops::max_pool2d(x, 2);
  EXPECT_NE(error_of([&] {
              torch::autograd::grad({z.square().sum()}, {x}, {}, true, true);
            }).find("[max_pool2d] the operator has no double backward"),
            std::string::npos);
}

TEST(MaxPool, BadArgumentsAreRefusedWithTheirValues) {
  const at::Tensor x = torch::randn({2, 3, 8, 8});
  const auto expect = [&](const char* message, const std::function<void()>& call) {
    const std::string error = error_of(call);
    EXPECT_EQ(error.find("[max_pool2d] "), 0u) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error << "\n  lacks " << message;
  };
  expect(
      "at most 255 positions, because one byte holds the place of its maximum, got kernel_size [16, 16]; "
      "take "
      "at::max_pool2d",
      [&] { ops::max_pool2d(x, {16, 16}); });
  expect("at most 255", [&] { ops::max_pool2d(x, {int64_t{1} << 40, int64_t{1} << 40}); });
  expect("kernel_size must be at least 1, got [0, 2]", [&] { ops::max_pool2d(x, {0, 2}); });
  expect("kernel_size must be one number or two (height, width), got []",
         [&] { ops::max_pool2d(x, at::IntArrayRef{}); });
  expect("stride must be at least 1, got [0]", [&] { ops::max_pool2d(x, 2, 0); });
  expect("padding must be at least 0, got [-1]", [&] { ops::max_pool2d(x, 2, 2, -1); });
  expect("padding must be at most half the kernel size, got padding [2] and kernel_size [3]",
         [&] { ops::max_pool2d(x, 3, 2, 2); });
  expect("dilation must be at least 1, got [1, 0]", [&] { ops::max_pool2d(x, 3, 2, 1, {1, 0}); });
  expect("the window must fit into the padded image, got x of shape [2, 3, 8, 8] with kernel_size [9, 9]",
         [&] { ops::max_pool2d(x, 9); });
  expect("x must be (N, C, H, W) or (C, H, W), got shape [3, 8]",
         [&] { ops::max_pool2d(x[0][0].slice(0, 0, 3), 2); });
  expect("only N may be 0), got shape [2, 0, 8, 8]", [&] { ops::max_pool2d(x.slice(1, 0, 0), 2); });
  expect("x must be float32, float64, float16 or bfloat16, got int64",
         [&] { ops::max_pool2d(x.to(at::kLong), 2); });
  expect("dense (strided) tensor", [&] { ops::max_pool2d(x.to_sparse(), 2); });
}

}  // namespace
}  // namespace palimpsest::ops::tests
