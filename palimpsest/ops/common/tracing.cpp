#include "palimpsest/ops/common/tracing.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace palimpsest::ops {

bool is_traced(const at::Tensor& t) {
  using c10::impl::TorchDispatchModeKey;
  using c10::impl::TorchDispatchModeTLS;
  // Any other mode (a counter of operations) sees real values: it must not change what is saved, because a
  // recomputed segment may run without it.
  for (const auto mode :
       {TorchDispatchModeKey::FAKE, TorchDispatchModeKey::PROXY, TorchDispatchModeKey::FUNCTIONAL})
    if (TorchDispatchModeTLS::get_mode(mode).has_value()) return true;
  return !(t.unsafeGetTensorImpl()->key_set() & at::kTensorSubclassLike).empty();
}

}  // namespace palimpsest::ops
