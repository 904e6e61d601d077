// The guarantees of kernels/cuda/abn.h besides correct values: the same bytes for every order of threads and
// every split into calls, in-place writes, the number of launches, a workspace for any problem, and NaN in
// its channel only.
#include "tests/kernels/cuda/abn_emulated.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <limits>

namespace palimpsest::testing {
namespace {

// Strips, vectors with edges, vectors alone, short vectors, single values; one segment and many.
const Shape3 kShapes[] = {{3, 20, 49},  {3, 18, 49}, {2, 16, 2048}, {5, 33, 1},
                          {1, 2, 9000}, {4, 8, 700}, {1, 6, 900}};

template <class Body>
void for_each_case(const Body& body) {
  for (const Shape3 shape : kShapes)
    for (const Layout layout : kLayouts)
      for (const Path path : kPaths) {
        const AbnCase c{.shape = shape, .layout = layout};
        SCOPED_TRACE(::testing::Message() << c << ", " << name_of(path));
        body(c, path);
      }
}

TEST(CudaAbnContract, EveryOrderOfThreadsAndBlocksGivesTheSameBytes) {
  for_each_case([](const AbnCase& c, Path path) {
    AbnTensors<float> want(c);
    {
      const EmulatedDevice device(path);
      run_cuda(c, want);
    }
    for (const Order order : kOrders) {
      const EmulatedDevice device(path, order);
      AbnTensors<float> got(c);
      run_cuda(c, got);
      expect_same(got, want);
    }
  });
}

TEST(CudaAbnContract, StatisticsThenApplyEqualsForwardInTwoLaunches) {
  for_each_case([](const AbnCase& c, Path path) {
    if (path != Path::kTwoLaunches) return;
    const EmulatedDevice device(path);
    AbnTensors<float> whole(c), split(c);
    run_cuda(c, whole);
    forget_outputs(split);
    WorkspaceMemory workspace;
    const auto problem = c.problem<float>();
    kernels::cuda::abn_statistics(problem, split.x.data(), split.mean.data(), split.var.data(),
                                  workspace.queue(problem));
    kernels::AbnForward forward = split.forward(c);
    forward.inv_std = whole.inv_std.data();
    kernels::cuda::abn_apply(problem, forward, workspace.queue(problem));
    EXPECT_TRUE(same_bytes(split.mean.values(), whole.mean.values()));
    EXPECT_TRUE(same_bytes(split.var.values(), whole.var.values()));
    EXPECT_TRUE(same_bytes(split.z.values(), whole.z.values()));
  });
}

TEST(CudaAbnContract, ReduceThenApplyEqualsBackwardInTwoLaunches) {
  for_each_case([](const AbnCase& c, Path path) {
    if (path != Path::kTwoLaunches) return;
    const EmulatedDevice device(path);
    AbnTensors<float> whole(c), split(c);
    run_cuda(c, whole);
    run_cuda_forward(c, split);
    WorkspaceMemory workspace;
    const auto problem = c.problem<float>();
    kernels::cuda::abn_backward_reduce(problem, split.backward(c), workspace.queue(problem));
    kernels::cuda::abn_backward_apply(problem, split.backward(c), static_cast<double>(c.shape.per_channel()),
                                      workspace.queue(problem));
    expect_same(split, whole);
  });
}

TEST(CudaAbnContract, WritingOverTheIncomingGradientGivesTheSameBytes) {
  for_each_case([](AbnCase c, Path path) {
    c.has_residual = true;
    const EmulatedDevice device(path);
    AbnTensors<float> apart(c), over(c);
    run_cuda(c, apart);
    run_cuda_forward(c, over);
    kernels::AbnBackward backward = over.backward(c);
    backward.dx = over.dz.data();
    WorkspaceMemory workspace;
    const auto problem = c.problem<float>();
    kernels::cuda::abn_backward(problem, backward, workspace.queue(problem));
    EXPECT_TRUE(same_bytes(over.dz.values(), apart.dx.values()));
    EXPECT_TRUE(same_bytes(over.dresidual.values(), apart.dresidual.values()));
  });
}

TEST(CudaAbnContract, BackwardWithFrozenStatisticsEqualsTheReference) {
  for_each_case([](const AbnCase& c, Path path) {
    const EmulatedDevice device(path);
    AbnTensors<float> got(c);
    run_cuda_forward(c, got);
    AbnTensors<float> want = got;
    WorkspaceMemory workspace;
    const auto problem = c.problem<float>();
    kernels::AbnBackward backward = got.backward(c), reference = want.backward(c);
    backward.frozen_statistics = reference.frozen_statistics = true;
    kernels::cuda::abn_backward(problem, backward, workspace.queue(problem));
    kernels::reference::abn_backward(problem, reference);
    const Tolerance limit = tolerance(DType::f32);
    EXPECT_TRUE(close(got.dx.values(), want.dx.values(), limit, c.seed));
    EXPECT_TRUE(close(got.sum_dy.values(), want.sum_dy.values(), limit, c.seed));
    EXPECT_TRUE(close(got.sum_dy_xhat.values(), want.sum_dy_xhat.values(), limit, c.seed));
  });
}

TEST(CudaAbnContract, ABackwardIsTwoLaunchesOrOne) {
  const auto launches = [](const AbnCase& c, Path path) {
    const EmulatedDevice device(path);
    AbnTensors<float> t(c);
    run_cuda_forward(c, t);
    WorkspaceMemory workspace;
    const auto problem = c.problem<float>();
    const int64_t before = cuda_emulator::launches();
    kernels::cuda::abn_backward(problem, t.backward(c), workspace.queue(problem));
    return cuda_emulator::launches() - before;
  };
  for (const Layout layout : kLayouts) {
    EXPECT_EQ(launches({.shape = {4, 16, 700}, .layout = layout}, Path::kTwoLaunches), 2);
    EXPECT_EQ(launches({.shape = {4, 16, 100}, .layout = layout}, Path::kOneBlock), 1);
    EXPECT_EQ(launches({.shape = {4, 16, 25}, .layout = layout}, Path::kClusters), 1);
    EXPECT_EQ(launches({.shape = {80, 16, 700}, .layout = layout}, Path::kClusters), 2);  // too large
  }
}

TEST(CudaAbnContract, WritingOverTheInputGivesTheSameBytes) {
  for_each_case([](AbnCase c, Path path) {
    for (const Saved saved : {Saved::kOutput, Saved::kPreActivation, Saved::kNormalized}) {
      c.saved = saved;
      const EmulatedDevice device(path);
      AbnTensors<Float16> apart(c), over(c);
      run_cuda_forward(c, apart);
      WorkspaceMemory workspace;
      kernels::AbnForward forward = over.forward(c);
      (c.saves_aside() ? forward.saved_values : forward.z) = over.x.data();
      const auto problem = c.problem<Float16>();
      kernels::cuda::abn_forward(problem, kEps, forward, {}, workspace.queue(problem));
      EXPECT_TRUE(same_bytes(over.x.values(), (c.saves_aside() ? apart.saved_values : apart.z).values()));
      if (c.saves_aside()) {
        EXPECT_TRUE(same_bytes(over.z.values(), apart.z.values()));
      }
    }
  });
}

TEST(CudaAbnContract, RecomputesTheOutputBitForBit) {
  for_each_case([](AbnCase c, Path path) {
    for (const Saved saved : {Saved::kPreActivation, Saved::kNormalized, Saved::kInput})
      for (const bool has_residual : {false, true}) {
        c.saved = saved, c.has_residual = has_residual, c.mean = 1e3;
        const EmulatedDevice device(path);
        AbnTensors<float> t(c), again(c);
        run_cuda_forward(c, t);
        forget_outputs(again);
        kernels::AbnForward from = t.forward(c);
        from.saved_values = t.saved_tensor(c);
        from.z = again.z.data();
        kernels::cuda::abn_recompute_output(c.problem<float>(), from, {});
        EXPECT_TRUE(same_bytes(again.z.values(), t.z.values()));
      }
  });
}

TEST(CudaAbnContract, TensorsThatAreMisalignedAgainstEachOtherGiveTheSameValues) {
  for_each_case([](const AbnCase& c, Path path) {
    const EmulatedDevice device(path);
    AbnTensors<float> t(c);
    Buffer<float> shifted(c.shape.elements(), 1);
    run_cuda(c, t);
    WorkspaceMemory workspace;
    kernels::AbnForward forward = t.forward(c);
    forward.z = shifted.data();
    const auto problem = c.problem<float>();
    kernels::cuda::abn_forward(problem, kEps, forward, {}, workspace.queue(problem));
    EXPECT_TRUE(close(shifted.values(), t.z.values(), tolerance(DType::f32), c.seed));
  });
}

TEST(CudaAbnContract, AForwardIsTwoLaunchesOrOne) {
  const auto launches = [](const AbnCase& c, Path path) {
    const EmulatedDevice device(path);
    AbnTensors<float> t(c);
    const int64_t before = cuda_emulator::launches();
    run_cuda_forward(c, t);
    return cuda_emulator::launches() - before;
  };
  for (const Layout layout : kLayouts) {
    const AbnCase c{.shape = {4, 16, 900}, .layout = layout};
    EXPECT_EQ(launches(c, Path::kTwoLaunches), 2);
    EXPECT_EQ(launches(c, Path::kOneBlock),
              layout == Layout::kNCHW ? 1 : 2);  // columns of 64 bytes x 3600 pixels
    EXPECT_EQ(launches({.shape = {4, 16, 200}, .layout = layout}, Path::kOneBlock), 1);
    EXPECT_EQ(launches({.shape = {4, 16, 50}, .layout = layout}, Path::kClusters), 1);
    EXPECT_EQ(launches({.shape = {80, 16, 700}, .layout = layout}, Path::kClusters), 2);  // too large
  }
}

TEST(CudaAbnContract, WhereTheDeviceRefusesClustersTwoLaunchesGiveTheSameValues) {
  for (const Layout layout : kLayouts) {
    const AbnCase c{.shape = {4, 16, layout == Layout::kNCHW ? 202 : 25}, .layout = layout};
    SCOPED_TRACE(::testing::Message() << c);
    AbnTensors<float> in_clusters(c), refused(c);
    const auto launches = [&](AbnTensors<float>& t) {
      const int64_t before = cuda_emulator::launches();
      run_cuda(c, t);
      return cuda_emulator::launches() - before;
    };
    const EmulatedDevice device(Path::kClusters);
    EXPECT_EQ(launches(in_clusters), 2);
    for (int64_t& active : cuda_emulator::settings().active_clusters) active = 0;  // nor of single blocks
    EXPECT_EQ(launches(refused), 4);
    EXPECT_TRUE(close(refused.z.values(), in_clusters.z.values(), tolerance(DType::f32), c.seed));
    EXPECT_TRUE(close(refused.dx.values(), in_clusters.dx.values(), tolerance(DType::f32), c.seed));
  }
}

TEST(CudaAbnContract, ASecondWaveOfClustersIsAvoided) {
  // 10 MB, 4 blocks per panel: a second wave would cost more than the second of two launches.
  const AbnCase c{.shape = {2, 80, 16000}};
  const auto launches = [&](int64_t at_once) {
    AbnTensors<float> t(c);
    auto& settings = cuda_emulator::settings();
    const WithOrder order(Order::kForward);
    for (int64_t& active : settings.active_clusters) active = at_once;
    const int64_t before = cuda_emulator::launches();
    run_cuda_forward(c, t);
    return cuda_emulator::launches() - before;
  };
  EXPECT_EQ(launches(80), 1);
  EXPECT_EQ(launches(79), 2);
}

TEST(CudaAbnContract, AWorkspaceServesOneProblemAfterAnother) {
  const EmulatedDevice device(Path::kTwoLaunches);
  int64_t bytes = 0;
  for (const Shape3 shape : kShapes)
    for (const Layout layout : kLayouts)
      bytes = std::max(bytes, kernels::cuda::abn_workspace_bytes(
                                  AbnCase{.shape = shape, .layout = layout}.problem<float>()));
  std::vector<unsigned char> memory(static_cast<std::size_t>(bytes));
  for_each_case([&](const AbnCase& c, Path path) {
    if (path != Path::kTwoLaunches) return;
    const EmulatedDevice again(path);
    AbnTensors<float> fresh(c), used(c);
    run_cuda(c, fresh);
    forget_outputs(used);
    kernels::cuda::abn_forward(c.problem<float>(), kEps, used.forward(c), {}, {nullptr, memory.data()});
    kernels::cuda::abn_backward(c.problem<float>(), used.backward(c), {nullptr, memory.data()});
    expect_same(used, fresh);
  });
}

TEST(CudaAbnContract, AnEmptyBatchLaunchesNothing) {
  const int64_t before = cuda_emulator::launches();
  for (const Shape3 shape : {Shape3{0, 3, 5}, Shape3{2, 0, 5}, Shape3{2, 3, 0}}) {
    const AbnCase c{.shape = shape};
    const auto problem = c.problem<float>();
    WorkspaceMemory workspace;
    const kernels::cuda::Queue queue = workspace.queue(problem);
    kernels::cuda::abn_forward(problem, kEps, {}, {}, queue);
    kernels::cuda::abn_statistics(problem, nullptr, nullptr, nullptr, queue);
    kernels::cuda::abn_apply(problem, {}, queue);
    kernels::cuda::abn_recompute_output(problem, {}, queue);
    kernels::cuda::abn_backward_reduce(problem, {}, queue);
    kernels::cuda::abn_backward_apply(problem, {}, 1, queue);
    kernels::cuda::abn_backward(problem, {}, queue);
  }
  EXPECT_EQ(cuda_emulator::launches(), before);
}

TEST(CudaAbnContract, NotANumberStaysInItsChannel) {
  for (const double poison :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for_each_case([&](const AbnCase& c, Path path) {
      const EmulatedDevice device(path);
      AbnTensors<float> clean(c), t(c);
      run_cuda(c, clean);
      const int64_t bad = c.shape.c / 2;
      const int64_t at = c.layout == Layout::kNCHW ? bad * c.shape.s : bad;  // the first value of its channel
      t.x[at] = static_cast<float>(poison);
      run_cuda(c, t);
      for (int64_t i = 0; i < c.shape.elements(); ++i) {
        const int64_t channel = c.layout == Layout::kNCHW ? i / c.shape.s % c.shape.c : i % c.shape.c;
        if (channel == bad)
          ASSERT_TRUE(std::isnan(t.z[i]) && std::isnan(t.dx[i])) << i;
        else
          ASSERT_TRUE(t.z[i] == clean.z[i] && t.dx[i] == clean.dx[i]) << i;
      }
    });
}

TEST(CudaAbnContract, TheGradientOfAResidualThatIsNotANumberPassesItsReLU) {
  for (const Layout layout : kLayouts) {
    const AbnCase c{.shape = {2, 8, 40},
                    .layout = layout,
                    .saved = Saved::kPreActivation,
                    .has_residual = true,
                    .relu_residual = true};
    const EmulatedDevice device(Path::kClusters);
    AbnTensors<float> t(c);
    t.residual[57] = std::numeric_limits<float>::quiet_NaN();
    run_cuda(c, t);
    EXPECT_TRUE(std::isfinite(t.dresidual[57]));
    EXPECT_NE(t.dresidual[57], 0);
  }
}

TEST(CudaAbnContract, FrozenStatisticsFollowFromTheRunningOnes) {
  const auto expect = [](auto zero, int64_t channels, int64_t misaligned_by) {
    using T = decltype(zero);
    Buffer<T> mean(channels, misaligned_by), var(channels, misaligned_by);
    Buffer<double> got_mean(channels), got_inv_std(channels);
    Random random(static_cast<uint64_t>(channels));
    for (int64_t i = 0; i < channels; ++i) {
      mean[i] = static_cast<T>(random.uniform(-3, 3));
      var[i] = static_cast<T>(random.uniform(0, 2));
    }
    kernels::cuda::abn_frozen_statistics(dtype_of<T>(), channels, kEps, mean.data(), var.data(),
                                         got_mean.data(), got_inv_std.data(), nullptr);
    for (int64_t i = 0; i < channels; ++i) {
      ASSERT_EQ(got_mean[i], static_cast<double>(mean[i])) << i;
      ASSERT_EQ(got_inv_std[i], 1 / std::sqrt(static_cast<double>(var[i]) + kEps)) << i;
    }
  };
  for (const int64_t channels : {0, 1, 255, 256, 257, 1000})
    for (const int64_t misaligned_by : {0, 1}) {
      expect(0.f, channels, misaligned_by);
      expect(0., channels, misaligned_by);
      expect(Float16(), channels, misaligned_by);
      expect(BFloat16(), channels, misaligned_by);
    }
}

}  // namespace
}  // namespace palimpsest::testing
