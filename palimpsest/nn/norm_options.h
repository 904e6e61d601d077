#pragma once

#include "palimpsest/nn/strategy.h"

#include <string>

namespace palimpsest::nn {

/// The options that all normalizations of a network have in common. Blocks and networks take them.
///   nn::NormOptions{.strategy = nn::Strategy::kStoreY, .activation = nn::Activation::kReLU}
struct NormOptions {
  Strategy strategy = Strategy::kInplace2;
  Activation activation = Activation::kLeakyReLU;
  double activation_param = 0.01;  ///< leaky ReLU's slope or ELU's alpha
  bool in_place = true;            ///< false: leaves the input as it is, for an input with a second reader
  /// The process group whose ranks share the statistics of a batch (ops::AbnOptions::group). Empty: each
  /// process has its own.
  std::string group = {};

  /// Returns the same options without an activation.
  NormOptions identity() const {
    NormOptions copy = *this;
    copy.activation = Activation::kIdentity;
    return copy;
  }

  /// Returns the same options with in_place = false.
  NormOptions out_of_place() const {
    NormOptions copy = *this;
    copy.in_place = false;
    return copy;
  }
};

}  // namespace palimpsest::nn
