// Meter and Timeline on a device other than the CPU, with a stand-in for libtorch's caching allocator instead
// of a GPU.
#include "palimpsest/memory/device_memory.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/memory/timeline.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace palimpsest::memory {
namespace {

/// Reports bytes and allocates none.
class StandIn final : public c10::DeviceAllocator {
 public:
  bool ready = true;
  int64_t cached = 0;  // bytes kept for reuse

  /// Reports an allocation or a free to the profiler, as libtorch's own allocator does.
  void live(int64_t bytes, c10::Device device = {c10::DeviceType::CUDA, 0}) {
    c10::reportMemoryUsageToProfiler(this, bytes - current_, static_cast<size_t>(bytes), 1 << 30, device);
    current_ = bytes;
    peak_ = std::max(peak_, bytes);
  }

  bool initialized() override { return ready; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = current_;
    stats.allocated_bytes[0].peak = peak_;
    stats.reserved_bytes[0].current = stats.reserved_bytes[0].peak = 1 << 30;  // cached, not allocated
    return stats;
  }
  void resetPeakStats(c10::DeviceIndex) override { peak_ = current_; }

  c10::DataPtr allocate(size_t) override { throw std::logic_error("a stand-in has no memory"); }
  void copy_data(void*, const void*, std::size_t) const override {}
  void emptyCache(c10::MempoolId_t) override { cached = 0; }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override {
    return {static_cast<size_t>(10000 - current_ - cached), 10000};
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}

 private:
  int64_t current_ = 0, peak_ = 0;
};

class OfADevice : public ::testing::Test {
 protected:
  void SetUp() override { c10::SetAllocator(c10::DeviceType::CUDA, &allocator_); }
  void TearDown() override { c10::SetAllocator(c10::DeviceType::CUDA, before_); }

  StandIn allocator_;
  const c10::Device device_{c10::DeviceType::CUDA, 0};

 private:
  c10::Allocator* const before_ = c10::GetAllocator(c10::DeviceType::CUDA);
};

using DeviceMeter = OfADevice;
using DeviceMemory = OfADevice;
using DeviceTimeline = OfADevice;

TEST_F(DeviceMeter, ReadsTheAllocatedBytesOfTheDevice) {
  allocator_.live(5000);  // another step's peak
  allocator_.live(1000);
  Meter meter(device_);
  EXPECT_EQ(meter.base_bytes(), 1000);
  allocator_.live(3000);
  allocator_.live(2500);
  meter.forward_done();
  allocator_.live(2800);
  allocator_.live(1000);
  EXPECT_EQ(meter.kept_bytes(), 1500);
  EXPECT_EQ(meter.peak_bytes(), 3000);
}

TEST_F(DeviceMeter, SaysWhatIsMissing) {
  const auto said = [](c10::Device device) -> std::string {
    try {
      Meter meter(device);
    } catch (const std::logic_error& e) {
      return e.what();
    }
    return "nothing";
  };
  EXPECT_EQ(said(c10::Device(c10::DeviceType::CUDA)),
            "[memory] Meter needs to know which device, as in c10::Device(\"cuda:0\"), got cuda");
  const std::string absent =
      "[memory] Meter needs a caching allocator that has memory of cuda:0: link libtorch's library for it, "
      "and move "
      "a tensor there first";
  allocator_.ready = false;
  EXPECT_EQ(said(device_), absent);
  c10::SetAllocator(c10::DeviceType::CUDA, nullptr);
  EXPECT_EQ(said(device_), absent);
}

TEST_F(DeviceMemory, AttainableIsWhatLivesAndWhatIsFreeWithoutTheCache) {
  allocator_.live(1000);
  allocator_.cached = 3000;
  EXPECT_EQ(attainable_bytes(device_), 10000);
  EXPECT_EQ(allocator_.cached, 0);
  allocator_.cached = 500;
  release_cached(device_);
  EXPECT_EQ(allocator_.cached, 0);
  release_cached(c10::DeviceType::CPU);
  synchronize(c10::DeviceType::CPU);
  allocator_.ready = false;
  EXPECT_THROW(attainable_bytes(device_), std::logic_error);
}

std::vector<int64_t> bytes_of(const Timeline& timeline) {
  std::vector<int64_t> bytes;
  for (const auto& sample : timeline.samples()) bytes.push_back(sample.current_bytes);
  return bytes;
}

TEST_F(DeviceTimeline, HasOneSamplePerEventOfThatDeviceAndOneAtEachEnd) {
  allocator_.live(1000);
  Timeline timeline(device_);
  timeline.mark("forward");
  allocator_.live(3000);
  allocator_.live(7, {c10::DeviceType::CUDA, 1});
  at::Tensor of_the_cpu = at::empty({100});
  allocator_.live(2000);
  timeline.stop();
  allocator_.live(9000);
  timeline.stop();
  EXPECT_EQ(bytes_of(timeline), (std::vector<int64_t>{1000, 3000, 2000, 2000}));
  EXPECT_THROW(timeline.mark("late"), std::logic_error);
  for (std::size_t i = 1; i < timeline.samples().size(); ++i)
    EXPECT_GE(timeline.samples()[i].seconds, timeline.samples()[i - 1].seconds);
}

/// Reports an allocation in its backward pass.
struct Allocates : torch::autograd::Function<Allocates> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x, int64_t allocator) {
    ctx->saved_data["allocator"] = allocator;
    return x + 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    reinterpret_cast<StandIn*>(ctx->saved_data["allocator"].toInt())->live(5000);
    return {gradients[0], at::Tensor()};
  }
};

TEST_F(DeviceTimeline, HearsOfBackwardPassesAndNothingWhenItIsGone) {
  const at::Tensor x = at::ones({3}).requires_grad_();
  const auto of = reinterpret_cast<int64_t>(&allocator_);
  at::Tensor later;
  {
    Timeline timeline(device_);
    Allocates::apply(x, of).sum().backward();
    later = Allocates::apply(x, of).sum();
    timeline.stop();
    EXPECT_EQ(bytes_of(timeline), (std::vector<int64_t>{0, 5000, 5000}));
  }
  later.backward();
  EXPECT_FALSE(c10::memoryProfilingEnabled());
}

TEST_F(DeviceTimeline, OneAtATimeAndOnlyWhereThereIsMemory) {
  {
    Timeline first(device_);
    EXPECT_THROW(Timeline second(device_), std::logic_error);
    Timeline of_the_cpu;  // has an allocator of its own
    allocator_.live(3000);
    first.stop();
    EXPECT_EQ(bytes_of(first), (std::vector<int64_t>{0, 3000, 3000}));
  }
  {
    Timeline forgotten(device_);
  }  // destroyed while it records
  allocator_.ready = false;
  EXPECT_THROW(Timeline none(device_), std::logic_error);
  EXPECT_THROW(Timeline which(c10::Device(c10::DeviceType::CUDA)), std::logic_error);
}

}  // namespace
}  // namespace palimpsest::memory
