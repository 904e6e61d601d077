// The meter of another device than the CPU, with a stand-in for libtorch's caching allocator: no GPU is
// needed.
#include "palimpsest/memory/meter.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace palimpsest::memory {
namespace {

/// Tells of bytes; gives out none.
class StandIn final : public c10::DeviceAllocator {
 public:
  bool ready = true;

  void live(int64_t bytes) {
    current_ = bytes;
    peak_ = std::max(peak_, bytes);
  }

  bool initialized() override { return ready; }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = current_;
    stats.allocated_bytes[0].peak = peak_;
    stats.reserved_bytes[0].current = stats.reserved_bytes[0].peak = 1 << 30;  // put by, not allocated
    return stats;
  }
  void resetPeakStats(c10::DeviceIndex) override { peak_ = current_; }

  c10::DataPtr allocate(size_t) override { throw std::logic_error("a stand-in has no memory"); }
  void copy_data(void*, const void*, std::size_t) const override {}
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  void resetAccumulatedStats(c10::DeviceIndex) override {}

 private:
  int64_t current_ = 0, peak_ = 0;
};

class DeviceMeter : public ::testing::Test {
 protected:
  void SetUp() override { c10::SetAllocator(c10::DeviceType::CUDA, &allocator_); }
  void TearDown() override { c10::SetAllocator(c10::DeviceType::CUDA, before_); }

  StandIn allocator_;
  const c10::Device device_{c10::DeviceType::CUDA, 0};

 private:
  c10::Allocator* const before_ = c10::GetAllocator(c10::DeviceType::CUDA);
};

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

}  // namespace
}  // namespace palimpsest::memory
