#include "palimpsest/train/device.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/ops/cuda.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <fmt/format.h>

#include <charconv>
#include <string_view>
#include <vector>

namespace palimpsest::train {
namespace {

/// Returns N for "cuda:N", 0 for "cuda", -1 for anything else.
int gpu_index(std::string_view text) {
  constexpr std::string_view kGpu = "cuda";
  if (!text.starts_with(kGpu)) return -1;
  text.remove_prefix(kGpu.size());
  if (text.empty()) return 0;
  if (text[0] != ':' || text.size() < 2 || text.size() > 4) return -1;
  int index = -1;
  const auto [end, failure] = std::from_chars(text.data() + 1, text.data() + text.size(), index);
  constexpr int kHighest = 127;  // libtorch's indices have 8 bits
  return failure == std::errc() && end == text.data() + text.size() && index <= kHighest ? index : -1;
}

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw Error(ErrorKind::kUsage, fmt::format("device '{}' {}", text, why));
}

int gpu_count() {
  return at::globalContext().hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0;
}

}  // namespace

c10::Device parse_device(const std::string& text) {
  if (text == "cpu") return c10::DeviceType::CPU;
  if (c10::is_privateuse1_backend_registered() && text.starts_with(c10::get_privateuse1_backend()))
    return c10::Device(text);
  return parse_device(text, ops::has_cuda_kernels(), gpu_index(text) < 0 ? 0 : gpu_count());
}

c10::Device parse_device(const std::string& text, bool has_kernels, int count) {
  if (text == "cpu") return c10::DeviceType::CPU;
  const int index = gpu_index(text);
  if (index < 0)
    throw Error(ErrorKind::kUsage,
                unknown_name_message("device", text, std::vector<std::string>{"cpu", "cuda", "cuda:0"}));
  if (!has_kernels)
    refuse(text,
           "needs a build with kernels for GPUs, and this one has none: build with 'make build PRESET=cuda', "
           "which needs nvcc 12.8 or later, or use cpu");
  if (count == 0) refuse(text, "needs an NVIDIA GPU, and libtorch finds none: use cpu");
  if (index >= count)
    refuse(text, fmt::format("is not there: libtorch finds {}",
                             count == 1 ? std::string("one GPU, cuda:0")
                                        : fmt::format("{} GPUs, cuda:0 to cuda:{}", count, count - 1)));
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

std::string device_of_process(const std::string& text, int local_rank) {
  if (parse_device(text).is_cpu()) return text;
  if (text != "cuda")
    refuse(text,
           "would be shared by several processes: use cuda, and each process takes the GPU of its number");
  const std::string own = fmt::format("cuda:{}", gpu_count() == 1 ? 0 : local_rank);
  parse_device(own);
  return own;
}

}  // namespace palimpsest::train
