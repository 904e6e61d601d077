#include "palimpsest/nn/inplace_abn.h"

#include "palimpsest/base/error.h"

namespace palimpsest::nn {
namespace {

InPlaceABNOptions checked(const InPlaceABNOptions& options) {
  const std::string instead =
      "; take nn::BatchNormAct, e.g. nn::BatchNormActOptions(" + std::to_string(options.channels()) + ")";
  if (options.strategy() != Strategy::kInplace2)
    throw Error(ErrorKind::kUsage, "[InPlaceABN] the strategy must be 'inplace_2', got '" +
                                       to_string(options.strategy()) + "'" + instead);
  if (!fits(Strategy::kInplace2, options.activation()))
    throw Error(ErrorKind::kUsage, "[InPlaceABN] the activation must be invertible, got '" +
                                       to_string(options.activation()) + "'" + instead +
                                       ".strategy(nn::Strategy::kStoreY), which takes any activation");
  return options;
}

}  // namespace

InPlaceABNImpl::InPlaceABNImpl(const InPlaceABNOptions& options) : Cloneable(checked(options)) {}

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
