#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include <cstdint>

namespace palimpsest::ops::invertibility {

/// A (C) vector on the host, of any floating type and stride, read one value at a time: it needs no copy
/// while a layer uses most memory. Every value of an undefined vector is `absent`. A vector without memory
/// (in a traced graph) is an error: it is not absent.
class HostVector {
 public:
  HostVector(const at::Tensor& t, double absent) : absent_(absent) {
    if (!t.defined() || t.numel() == 0) return;
    TORCH_CHECK(t.storage().data() != nullptr, "[abn] the host needs the values of a vector of shape ",
                t.sizes(), ", got a tensor without memory");
    data_ = static_cast<const char*>(t.const_data_ptr());
    step_ = t.stride(0) * static_cast<int64_t>(t.element_size());
    type_ = t.scalar_type();
  }

  double at(int64_t i) const {
    if (!data_) return absent_;
    const char* const value = data_ + i * step_;
    switch (type_) {
      case at::kDouble:
        return *reinterpret_cast<const double*>(value);
      case at::kHalf:
        return *reinterpret_cast<const at::Half*>(value);
      case at::kBFloat16:
        return *reinterpret_cast<const at::BFloat16*>(value);
      default:
        return *reinterpret_cast<const float*>(value);
    }
  }

 private:
  const char* data_ = nullptr;
  int64_t step_ = 0;
  at::ScalarType type_ = at::kFloat;
  double absent_;
};

}  // namespace palimpsest::ops::invertibility
