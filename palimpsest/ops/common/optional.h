#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

/// Converts between optional tensors (arguments) and tensors that may be undefined (results, saved tensors).
namespace palimpsest::ops {

using OptionalTensor = std::optional<at::Tensor>;

inline at::Tensor or_undefined(const OptionalTensor& t) {
  return t.value_or(at::Tensor());
}

inline OptionalTensor or_none(const at::Tensor& t) {
  return t.defined() ? OptionalTensor(t) : std::nullopt;
}

inline at::Tensor defined_if(bool needed, at::Tensor t) {
  return needed ? std::move(t) : at::Tensor();
}

}  // namespace palimpsest::ops
