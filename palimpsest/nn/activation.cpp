#include "palimpsest/nn/activation.h"

#include "palimpsest/base/error.h"

#include <ATen/ATen.h>

#include <cmath>
#include <sstream>

namespace palimpsest::nn {

Activation parse_activation(std::string_view name) {
  return kernels::kActivations.parse(name);
}

std::string to_string(Activation activation) {
  return std::string(kernels::kActivations.name(activation));
}

std::vector<std::string> activation_names() {
  return kernels::kActivations.names();
}

void check_activation_param(Activation activation, double param) {
  std::ostringstream message;
  if (activation == Activation::kLeakyReLU && !(param >= 0 && param <= 1)) {
    message << "leaky_relu needs a slope in [0, 1], got " << param << "; try 0.01";
  } else if (activation == Activation::kELU && !(param >= 0 && std::isfinite(param))) {
    message << "elu needs a finite alpha, 0 or above, got " << param << "; try 1";
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
    case Activation::kSigmoid:
      return at::sigmoid_(y);
    case Activation::kTanh:
      return at::tanh_(y);
    case Activation::kReLU:
      return at::relu_(y);
    default:  // these save their input, which in-place forms would have to copy
      return activate(y, activation, param);
  }
}

at::Tensor activate(const at::Tensor& y, Activation activation, double param) {
  switch (activation) {
    case Activation::kLeakyReLU:
      return at::leaky_relu(y, param);
    case Activation::kELU:
      return at::elu(y, param);
    case Activation::kIdentity:
      return y;
    case Activation::kSigmoid:
      return at::sigmoid(y);
    case Activation::kTanh:
      return at::tanh(y);
    case Activation::kSoftplus:
      return at::softplus(y);
    case Activation::kReLU:
      return at::relu(y);
    case Activation::kReLU6:
      return at::relu6(y);
    case Activation::kGELU:
      return at::gelu(y);
    case Activation::kGELUTanh:
      return at::gelu(y, "tanh");
    case Activation::kSiLU:
      return at::silu(y);
    case Activation::kHardSwish:
      return at::hardswish(y);
    case Activation::kMish:
      return at::mish(y);
  }
  throw Error(ErrorKind::kInternal,
              "activation has no operator: " + std::to_string(static_cast<int>(activation)));
}

}  // namespace palimpsest::nn
