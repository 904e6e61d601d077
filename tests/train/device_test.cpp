#include "palimpsest/train/device.h"

#include "tests/train/support.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <string>

namespace palimpsest::train {
namespace {

TEST(Device, IsNamedAsLibtorchNamesIt) {
  EXPECT_EQ(parse_device("cpu"), c10::Device(c10::DeviceType::CPU));
  for (const char* wrong :
       {"", "gpu", "cud", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:128", "cuda:1234"})
    testing::expect_error(ErrorKind::kUsage, {"unknown device '" + std::string(wrong) + "'"},
                          [&] { parse_device(wrong); });
  // On a machine with a GPU this would be no error.
  if (!at::globalContext().hasCUDA())
    testing::expect_error(ErrorKind::kUsage, {"device 'cuda:1' needs", "cpu"},
                          [] { parse_device("cuda:1"); });
}

TEST(Device, AGpuThatIsNotThereIsOneLineWithTheWayOut) {
  const auto fails = [](const char* text, bool has_kernels, int gpus, const std::vector<std::string>& parts) {
    testing::expect_error(ErrorKind::kUsage, parts, [&] { parse_device(text, has_kernels, gpus); });
  };
  fails("cuda", false, 1,
        {"device 'cuda' needs a build with kernels for GPUs", "make build PRESET=cuda", "or use cpu"});
  fails("cuda", true, 0, {"device 'cuda' needs an NVIDIA GPU, and libtorch finds none: use cpu"});
  fails("cuda:1", true, 1, {"device 'cuda:1' is not there: libtorch finds one GPU, cuda:0"});
  fails("cuda:7", true, 4, {"device 'cuda:7' is not there: libtorch finds 4 GPUs, cuda:0 to cuda:3"});
  fails("gpu", true, 4, {"unknown device 'gpu'"});
  EXPECT_EQ(parse_device("cuda", true, 1), c10::Device(c10::DeviceType::CUDA, 0));
  EXPECT_EQ(parse_device("cuda:3", true, 4), c10::Device(c10::DeviceType::CUDA, 3));
}

}  // namespace
}  // namespace palimpsest::train
