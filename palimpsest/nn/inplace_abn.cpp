#include "palimpsest/nn/inplace_abn.h"

namespace palimpsest::nn {

at::Tensor InPlaceABNImpl::forward(at::Tensor x) {
  if (only_activation()) return activate_only(std::move(x));
  const ops::AbnOptions layer = begin_forward();
  return forward_fused(std::move(x), layer);
}

void InPlaceABNImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "palimpsest::nn::InPlaceABN(" << options.channels() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "none";
  }
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats()
         << ", activation=" << to_string(options.activation());
  if (options.activation() != Activation::kIdentity) stream << "[" << options.activation_param() << "]";
  stream << ", in_place=" << options.in_place() << ")";
}

}  // namespace palimpsest::nn
