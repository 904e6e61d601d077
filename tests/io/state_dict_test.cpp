#include "palimpsest/io/state_dict.h"

#include "tests/support/environment_variable.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <string>

namespace palimpsest::io::state_dict_tests {
namespace {

using testing::EnvironmentVariable;
using testing::expect_error;
using testing::put;
using testing::TemporaryFolder;

TEST(StateDictFile, ASafetensorsFileNeedsNoPython) {
  const TemporaryFolder folder;
  const EnvironmentVariable no_python("PALIMPSEST_PYTHON", "/no/such/python");
  put(folder / "weights.pth", std::string("\x02\0\0\0\0\0\0\0{}", 10));  // whatever it is called
  EXPECT_TRUE(read_state_dict(folder / "weights.pth").tensors.empty());
  expect_error(ErrorKind::kCheckpoint, {"neither a safetensors file nor a file of torch.save"}, [&] {
    put(folder / "text.pth", "some text");
    read_state_dict(folder / "text.pth");
  });
}

}  // namespace
}  // namespace palimpsest::io::state_dict_tests
