#pragma once

#include <ATen/ATen.h>

namespace palimpsest::testing {

/// ||got - want|| / ||want||, in f64; ||got|| where `want` is all zero.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor g = got.detach().to(at::kDouble), w = want.detach().to(at::kDouble);
  const double size = w.norm().item<double>();
  return (g - w).norm().item<double>() / (size > 0 ? size : 1);
}

}  // namespace palimpsest::testing
