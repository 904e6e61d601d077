#pragma once

#include "tests/kernels/abn_case.h"

#include <algorithm>
#include <type_traits>

namespace palimpsest::testing {

/// What the reference makes of the same inputs. In 16 bits its backward starts from the very tensor that
/// `got` kept: a value that was rounded to the other side of a kink, or deeper into saturation, changes the
/// gradient by more than any tolerance, and no arithmetic can tell. So do a z and a bit, which at the minimum
/// know of y half its digits. (What storage itself costs: docs/numerics.md.)
template <class T>
auto truth(const AbnCase& c, AbnTensors<T>& got) {
  using Truth = std::conditional_t<sizeof(T) == 2, T, double>;
  AbnTensors<Truth, T> want(c);
  kernels::reference::abn_forward(c.layer<Truth>(), kEps, want.forward(c));
  AbnTensors<Truth, T> backward = want;
  if (sizeof(T) == 2 || c.saved == Saved::kOutputBit) {
    std::transform(got.saved_tensor(c), got.saved_tensor(c) + c.shape.elements(), backward.saved_tensor(c),
                   [](T value) { return static_cast<Truth>(value); });
    std::copy_n(got.branch.data(), got.branch.size(), backward.branch.data());
  }
  kernels::reference::abn_backward(c.layer<Truth>(), backward.backward(c));
  want.dx = backward.dx, want.dresidual = backward.dresidual, want.z_again = backward.z_again;
  want.sum_dy = backward.sum_dy, want.sum_dy_xhat = backward.sum_dy_xhat;
  return want;
}

}  // namespace palimpsest::testing
