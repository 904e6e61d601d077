#include "palimpsest/nn/activation.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"

#include <cmath>
#include <sstream>

namespace palimpsest::nn {

Activation parse_activation(std::string_view name) {
  if (name == "leaky_relu") return Activation::kLeakyReLU;
  if (name == "elu") return Activation::kELU;
  if (name == "identity") return Activation::kIdentity;
  throw Error(ErrorKind::kUsage, unknown_name_message("activation", name, activation_names()));
}

std::string to_string(Activation activation) {
  switch (activation) {
    case Activation::kLeakyReLU:
      return "leaky_relu";
    case Activation::kELU:
      return "elu";
    case Activation::kIdentity:
      return "identity";
  }
  throw Error(ErrorKind::kInternal,
              "activation has no name: " + std::to_string(static_cast<int>(activation)));
}

std::vector<std::string> activation_names() {
  return {"leaky_relu", "elu", "identity"};
}

void check_activation_param(Activation activation, double param) {
  std::ostringstream message;
  if (activation == Activation::kLeakyReLU && !(param > 0 && param <= 1)) {
    message << "leaky_relu needs a slope in (0, 1], got " << param
            << ": at slope 0 (plain ReLU) the layer cannot be inverted; try 0.01";
  } else if (activation == Activation::kELU && !(param > 0 && std::isfinite(param))) {
    message << "elu needs a finite alpha above 0, got " << param << "; try 1";
  } else {
    return;
  }
  throw Error(ErrorKind::kUsage, message.str());
}

at::Tensor activate_(at::Tensor y, Activation activation, double param) {
  switch (activation) {
    case Activation::kLeakyReLU:
      return at::leaky_relu_(y, param);
    case Activation::kELU:
      return at::elu_(y, param);
    case Activation::kIdentity:
      break;
  }
  return y;
}

}  // namespace palimpsest::nn
