// Instead of nccl.cpp in a build without CUDA.
#include "palimpsest/distributed/common/libtorch.h"

#include <c10/util/Exception.h>

namespace palimpsest::distributed {

bool has_nccl() {
  return false;
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>&, int, int,
                                            std::chrono::milliseconds) {
  TORCH_CHECK(false, "this build has no NCCL: build palimpsest with PALIMPSEST_CUDA=ON");
}

}  // namespace palimpsest::distributed
