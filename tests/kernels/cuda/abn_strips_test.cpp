// The launches that keep strips of small planes in shared memory (device/strips.cuh), executed by the
// emulator, against the reference: every size of plane that makes strips, images that do not fill a block's
// rows, every activation and saved tensor, clusters; and which problems take them.
#include "tests/kernels/abn_truth.h"
#include "tests/kernels/cuda/abn_emulated.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

namespace palimpsest::testing {
namespace {

/// The blocks of a forward and a backward; each must be one launch.
struct Blocks {
  int64_t forward = 0, backward = 0;
  unsigned forward_cluster = 0, backward_cluster = 0;
};

template <class T>
Blocks run_in_one_launch_each(const AbnCase& c, AbnTensors<T>& t) {
  const auto problem = c.problem<T>();
  WorkspaceMemory workspace;
  Blocks blocks;
  int64_t before = cuda_emulator::launches();
  run_cuda_forward(c, t);
  EXPECT_EQ(cuda_emulator::launches() - before, 1);
  blocks.forward = cuda_emulator::last_launch().grid.x;
  blocks.forward_cluster = cuda_emulator::last_launch().cluster;
  if (!can_save(c.activation, c.saved)) return blocks;
  before = cuda_emulator::launches();
  kernels::cuda::abn_backward(problem, t.backward(c), workspace.queue(problem));
  if (cuda_emulator::launches() - before == 1) {  // activations with long arithmetic take two
    blocks.backward = cuda_emulator::last_launch().grid.x;
    blocks.backward_cluster = cuda_emulator::last_launch().cluster;
  }
  return blocks;
}

/// Channels of the narrowest strip.
template <class T>
int64_t strip_channels(int64_t s) {
  constexpr auto kVector = static_cast<int64_t>(16 / sizeof(T));
  return kVector / std::gcd(s, kVector);
}

template <class T>
class CudaAbnStrips : public ::testing::Test {
 protected:
  Blocks expect_right(const AbnCase& c, int blocks = 1) {
    SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << c << ", " << blocks << " blocks");
    const ClusterDevice device(blocks, kOrders[cases_++ % 3]);
    AbnTensors<T> got(c);
    const Blocks result = run_in_one_launch_each(c, got);
    auto want = truth(c, got);
    const Tolerance vectors = tolerance(dtype_of<accumulate_t<T>>());
    const Tolerance limit =
        c.saved == Saved::kOutputBit ? tolerance_at_minimum(dtype_of<T>()) : tolerance(dtype_of<T>());
    EXPECT_TRUE(close(got.z.values(), want.z.values(), limit, c.seed)) << "z";
    EXPECT_TRUE(close(got.saved_values.values(), want.saved_values.values(), limit, c.seed))
        << "saved values";
    EXPECT_TRUE(close(got.mean.values(), want.mean.values(), vectors, c.seed)) << "mean";
    EXPECT_TRUE(close(got.var.values(), want.var.values(), vectors, c.seed)) << "var";
    EXPECT_TRUE(close(got.inv_std.values(), want.inv_std.values(), vectors, c.seed)) << "inv_std";
    if (!can_save(c.activation, c.saved)) return result;
    EXPECT_TRUE(close(got.dx.values(), want.dx.values(), limit, c.seed)) << "dx";
    EXPECT_TRUE(close(got.sum_dy.values(), want.sum_dy.values(), limit, c.seed)) << "sum_dy";
    EXPECT_TRUE(close(got.sum_dy_xhat.values(), want.sum_dy_xhat.values(), limit, c.seed)) << "sum_dy_xhat";
    EXPECT_TRUE(close(got.dresidual.values(), want.dresidual.values(), limit, c.seed)) << "dresidual";
    if (c.makes_z_again()) {
      EXPECT_TRUE(same_bytes(got.z_again.values(), got.z.values())) << "z made again";
    }
    return result;
  }

  int cases_ = 0;  // each takes the next order
};

using StripTypes = ::testing::Types<float, Float16, BFloat16>;
TYPED_TEST_SUITE(CudaAbnStrips, StripTypes, TypeName);

TYPED_TEST(CudaAbnStrips, EqualTheReferenceForEverySizeOfPlaneAndNumberOfImages) {
  for (const int64_t s : {9, 10, 11, 15, 25, 35, 49, 63, 98, 100, 196}) {
    const int64_t channels = strip_channels<TypeParam>(s);
    if (channels == 1) continue;
    for (const int64_t n : {1, 7, 10, 33}) {
      const Blocks blocks = this->expect_right({.shape = {n, 3 * channels, s}});
      EXPECT_EQ(blocks.forward, 3);
      EXPECT_EQ(blocks.backward, 3);
    }
  }
}

TYPED_TEST(CudaAbnStrips, EqualTheReferenceForEveryActivationAndSavedTensor) {
  for (const auto& [activation, name, is_listed] : kernels::kActivations)
    for (const Saved saved : kAllSaved)
      for (const int residual : {0, 1, 2}) {
        if (!can_save(activation, saved)) continue;
        const Blocks blocks = this->expect_right({.shape = {3, 16, 49},
                                                  .activation = activation,
                                                  .activation_param = default_param(activation),
                                                  .saved = saved,
                                                  .has_residual = residual > 0,
                                                  .relu_residual = residual == 2});
        EXPECT_EQ(blocks.forward, sizeof(TypeParam) == 2 ? 2 : 4);
      }
}

TYPED_TEST(CudaAbnStrips, EqualTheReferenceWhereClustersShareAStrip) {
  for (const unsigned blocks : {2u, 4u, 8u})
    for (const int64_t n : {8, 21, 70}) {
      const Blocks shared =
          this->expect_right({.shape = {n, 16, 49}, .has_residual = n == 8}, static_cast<int>(blocks));
      EXPECT_EQ(shared.forward_cluster, blocks);
      EXPECT_EQ(shared.backward_cluster, blocks);
    }
}

// Of one channel: rows of whole vectors that leave few threads idle. 100 and 300 vectors leave too many.
TYPED_TEST(CudaAbnStrips, OfOneChannelEqualTheReference) {
  constexpr auto kVector = static_cast<int64_t>(16 / sizeof(TypeParam));
  for (const int64_t vectors : {49, 98, 100, 128, 170, 255, 300, 392, 511, 512})
    for (const int64_t n : {1, 5, 23})
      for (const int blocks : {2 * n * vectors * 16 < 96 * 1024 ? 1 : 8, n < 4 ? 1 : 4})
        this->expect_right({.shape = {n, 3, vectors * kVector}, .has_residual = n == 5}, blocks);
}

TYPED_TEST(CudaAbnStrips, AreSharedByNoMoreBlocksThanThereAreImages) {
  constexpr auto kVector = static_cast<int64_t>(16 / sizeof(TypeParam));
  const auto clusters = [](int64_t images) {
    const WithOrder order(Order::kForward);  // a device that runs as many clusters as are asked for
    const AbnCase c{.shape = {images, 96, 512 * kVector}};
    AbnTensors<TypeParam> t(c);
    return run_in_one_launch_each(c, t).backward_cluster;
  };
  EXPECT_EQ(clusters(4), 4);
  EXPECT_EQ(clusters(3), 2);
}

TYPED_TEST(CudaAbnStrips, LoseNoDigitsWhereTheFirstBlockOfAClusterHasNoValues) {
  if (sizeof(TypeParam) == 2) GTEST_SKIP() << "16-bit storage has no digits there";
  this->expect_right({.shape = {1, 8, 3}, .layout = Layout::kChannelsLast, .mean = 1e6}, 4);
}

TYPED_TEST(CudaAbnStrips, LoseNoDigitsWhereTheMeanIsFarFromZero) {
  if (sizeof(TypeParam) == 2) GTEST_SKIP() << "16-bit storage has no digits there";
  for (const double mean : {-1e3, 1e4, 1e5})
    for (const int blocks : {1, 4}) this->expect_right({.shape = {20, 8, 49}, .mean = mean}, blocks);
}

TYPED_TEST(CudaAbnStrips, KeepTheirDigitsWhereTheFirstValuesAreNothingLikeTheRest) {
  for (const int blocks : {1, 4}) {
    const AbnCase c{.shape = {60, 8, 49}};
    const ClusterDevice device(blocks);
    expect_digits_beside_outliers<TypeParam>(c);
  }
}

TYPED_TEST(CudaAbnStrips, AreWiderWherePlanesAreManyAndTiny) {
  // Of 3x3 pixels 16 channels and not 8 of 16 bits, 8 and not 4 of f32: there remain 256 strips.
  const int64_t channels = 2 * strip_channels<TypeParam>(9);
  const Blocks blocks = this->expect_right({.shape = {2, 256 * channels, 9}});
  EXPECT_EQ(blocks.forward, 256);
  EXPECT_EQ(blocks.backward, 256);
  // A plane of whole vectors needs no strips, but makes them.
  const Blocks whole = this->expect_right({.shape = {2, 512, 16}});
  EXPECT_EQ(whole.forward, 256);
}

TEST(CudaAbnStripsContract, TakeTheLayersOfResNet) {
  const auto blocks = []<class T>(T, const Shape3& shape) {
    const WithOrder order(Order::kForward);
    const AbnCase c{.shape = shape};
    AbnTensors<T> t(c);
    return run_in_one_launch_each(c, t);
  };
  // A block or a cluster per strip: of 8 channels in 7x7, of 4 in f32, and of 2 in 14x14.
  const auto expect_strips = [](const Blocks& got, int64_t strips) {
    EXPECT_EQ(got.forward / got.forward_cluster, strips);
    EXPECT_EQ(got.backward / got.backward_cluster, strips);
  };
  expect_strips(blocks(BFloat16{}, {64, 2048, 49}), 256);
  expect_strips(blocks(BFloat16{}, {64, 512, 49}), 64);
  expect_strips(blocks(float{}, {64, 512, 49}), 128);
  expect_strips(blocks(BFloat16{}, {64, 256, 196}), 128);
}

TEST(CudaAbnStripsContract, ArePlanesWhereChannelsOrAddressesDoNotAllowThem) {
  const auto blocks = [](const AbnCase& c) {
    const ClusterDevice device;
    AbnTensors<BFloat16> t(c);
    return run_in_one_launch_each(c, t).forward;
  };
  EXPECT_EQ(blocks({.shape = {2, 16, 49}}), 2);
  EXPECT_EQ(blocks({.shape = {2, 12, 49}}), 12);
  EXPECT_EQ(blocks({.shape = {2, 16, 49}, .misaligned_by = 1}), 16);
  EXPECT_EQ(blocks({.shape = {2, 16, 7}}), 16);    // a vector would have three channels
  EXPECT_EQ(blocks({.shape = {2, 16, 65}}), 16);   // the strip would be too wide
  EXPECT_EQ(blocks({.shape = {2, 16, 512}}), 16);  // no edges anyway
}

TEST(CudaAbnStripsContract, GiveTheSameBytesInEveryOrderOfThreads) {
  for (const int blocks : {1, 4}) {
    const AbnCase c{.shape = {21, 16, 49}, .has_residual = true};
    AbnTensors<BFloat16> want(c);
    {
      const ClusterDevice device(blocks);
      run_cuda(c, want);
    }
    for (const Order order : kOrders) {
      const ClusterDevice device(blocks, order);
      AbnTensors<BFloat16> got(c);
      run_cuda(c, got);
      expect_same(got, want);
    }
  }
}

TEST(CudaAbnStripsContract, KeepNotANumberInItsChannel) {
  const AbnCase c{.shape = {12, 16, 49}};
  for (const int blocks : {1, 2})
    for (const double poison :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
      for (const int64_t bad : {0, 6, 7, 15})
        for (const int64_t pixel : {0, 48}) {  // in a vector of two channels
          const ClusterDevice device(blocks);
          AbnTensors<BFloat16> clean(c), t(c);
          run_cuda(c, clean);
          t.x[(5 * c.shape.c + bad) * c.shape.s + pixel] = static_cast<BFloat16>(poison);
          run_cuda(c, t);
          for (int64_t i = 0; i < c.shape.elements(); ++i) {
            const auto z = static_cast<double>(t.z[i]), dx = static_cast<double>(t.dx[i]);
            if (i / c.shape.s % c.shape.c == bad)
              ASSERT_TRUE(std::isnan(z) && std::isnan(dx)) << i;
            else
              ASSERT_TRUE(z == static_cast<double>(clean.z[i]) && dx == static_cast<double>(clean.dx[i]))
                  << i;
          }
        }
}

}  // namespace
}  // namespace palimpsest::testing
