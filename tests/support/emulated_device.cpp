#include "tests/support/emulated_device.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace palimpsest::testing::emulated_device {
namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
const c10::Device kDevice{kType, 0};

struct State {
  std::mutex mutex;
  std::vector<std::string> events;
  int64_t host_waits = 0, pinned_bytes = 0, live_bytes = 0, peak_bytes = 0;
  std::map<const void*, int64_t> pinned;     // start, size
  std::map<const void*, int64_t> stream_of;  // of the memory of the device
  int64_t next_event = 1, next_stream = 1;
};
State& state() {
  static auto& all = *new State;
  return all;
}
thread_local int64_t current_stream = 0;

void note(const std::string& event) {
  const std::lock_guard lock(state().mutex);
  state().events.push_back(event);
}
void note_wait(const std::string& event) {
  note(event);
  ++state().host_waits;
}

bool is_pinned(const void* data) {
  const std::lock_guard lock(state().mutex);
  auto after = state().pinned.upper_bound(data);
  if (after == state().pinned.begin()) return false;
  --after;
  return static_cast<const char*>(data) < static_cast<const char*>(after->first) + after->second;
}

/// Memory of the device: from malloc, but no tensor of the CPU may read it.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::malloc(std::max<size_t>(bytes, 1));
    std::memset(data, 0xFF, bytes);
    const std::lock_guard lock(state().mutex);
    sizes_[data] = static_cast<int64_t>(bytes);
    state().stream_of[data] = current_stream;
    state().live_bytes += static_cast<int64_t>(bytes);
    state().peak_bytes = std::max(state().peak_bytes, state().live_bytes);
    return {data, data, &free, kDevice};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = state().live_bytes;
    stats.allocated_bytes[0].peak = state().peak_bytes;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override { state().peak_bytes = state().live_bytes; }

 private:
  static void free(void* data) {
    {
      const std::lock_guard lock(state().mutex);
      state().live_bytes -= sizes_[data];
      sizes_.erase(data);
      state().stream_of.erase(data);
    }
    std::free(data);
  }
  static inline std::map<void*, int64_t> sizes_;
};

class PinnedMemory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* const data = std::malloc(std::max<size_t>(bytes, 1));
    const std::lock_guard lock(state().mutex);
    state().pinned[data] = static_cast<int64_t>(bytes);
    state().pinned_bytes += static_cast<int64_t>(bytes);
    return {data, data, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

 private:
  static void free(void* data) {
    {
      const std::lock_guard lock(state().mutex);
      state().pinned_bytes -= state().pinned[data];
      state().pinned.erase(data);
    }
    std::free(data);
  }
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(current_stream); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getStreamFromGlobalPool(c10::Device, bool) const override {
    return stream(state().next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return stream(std::exchange(current_stream, static_cast<int64_t>(to.id())));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = reinterpret_cast<void*>(state().next_event++);
    note("record event " + number(*event) + " on stream " + std::to_string(on.id()));
  }
  void block(void* event, const c10::Stream& on) const override {
    note("stream " + std::to_string(on.id()) + " waits for event " + number(event));
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override { note_wait("host waits for event " + number(event)); }
  void synchronizeDevice(c10::DeviceIndex) const override { note_wait("host waits for the device"); }

 private:
  static c10::Stream stream(int64_t id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }
  static std::string number(void* event) { return std::to_string(reinterpret_cast<int64_t>(event)); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static PinnedMemory memory;
    return &memory;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator(1);
    return generator;
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
};

/// Returns a tensor of the CPU on the memory of `tensor`.
at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.is_cpu() ? tensor
                         : at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                                         at::TensorOptions().dtype(tensor.scalar_type()));
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  if (!to.is_cpu() && from.is_cpu())
    note("copy to device " + std::to_string(from.nbytes()) + " bytes of " +
         (is_pinned(from.const_data_ptr()) ? "pinned" : "pageable") + " memory on stream " +
         std::to_string(current_stream));
  const at::DisableRecordFunctionGuard quiet;
  const at::NoGradGuard no_grad;
  at::Tensor target = on_cpu(to);
  target.copy_(on_cpu(from));
  return to;
}

/// What the fallback does with its results and with tensors that an operator changes.
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    const at::Tensor fresh = at::empty(from.sizes(), to.options());
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(fresh.storage());
    to.unsafeGetTensorImpl()->set_sizes_and_strides(fresh.sizes(), fresh.strides());
  }
  at::Tensor target = to;
  return copy(target, from, false);
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), c10::GetAllocator(kType), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           c10::GetAllocator(kType), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
      offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), self.storage_offset());
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  int64_t own = 0;
  {
    const std::lock_guard lock(state().mutex);
    own = state().stream_of.at(tensor.storage().data());
  }
  note("memory of stream " + std::to_string(own) + " is used on stream " + std::to_string(stream.id()));
}

/// Executes any other operator on the CPU; its own copies are no copies of the program.
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::DisableRecordFunctionGuard quiet;
  const std::size_t events = state().events.size();
  at::native::cpu_fallback(op, stack);
  const std::lock_guard lock(state().mutex);
  state().events.resize(std::min(events, state().events.size()));
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("record_stream", &record_stream);
}

}  // namespace

void install() {
  static const bool once = [] {
    static DeviceMemory memory;
    static Hooks hooks;
    c10::SetAllocator(kType, &memory);
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::register_privateuse1_backend("emulated");
    return true;
  }();
  static_cast<void>(once);
}

std::vector<std::string> take_events() {
  const std::lock_guard lock(state().mutex);
  return std::exchange(state().events, {});
}

int64_t host_waits() {
  return state().host_waits;
}

int64_t pinned_bytes() {
  const std::lock_guard lock(state().mutex);
  return state().pinned_bytes;
}

}  // namespace palimpsest::testing::emulated_device
