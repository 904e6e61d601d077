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

}  // namespace
}  // namespace palimpsest::train
