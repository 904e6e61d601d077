#pragma once

#include "tests/kernels/abn_case.h"

#include <algorithm>
#include <type_traits>

namespace palimpsest::testing {

/// The reference's result for the same inputs. In 16 bits its backward starts from the saved values of `got`:
/// a value that was rounded to the other side of a kink, or deeper into saturation, changes the gradient by
/// more than any tolerance. The same holds for z and a bit, which at the minimum determine half of y's
/// digits. (docs/numerics.md has the errors of storage itself.)
template <class T>
auto truth(const AbnCase& c, AbnTensors<T>& got) {
  using Truth = std::conditional_t<sizeof(T) == 2, T, double>;
  AbnTensors<Truth, T> want(c);
  kernels::reference::abn_forward(c.problem<Truth>(), kEps, want.forward(c));
  AbnTensors<Truth, T> backward = want;
  if (sizeof(T) == 2 || c.saved == Saved::kOutputBit) {
    std::transform(got.saved_tensor(c), got.saved_tensor(c) + c.shape.elements(), backward.saved_tensor(c),
                   [](T value) { return static_cast<Truth>(value); });
    std::copy_n(got.branch.data(), got.branch.size(), backward.branch.data());
  }
  kernels::reference::abn_backward(c.problem<Truth>(), backward.backward(c));
  want.dx = backward.dx, want.dresidual = backward.dresidual, want.z_again = backward.z_again;
  want.sum_dy = backward.sum_dy, want.sum_dy_xhat = backward.sum_dy_xhat;
  return want;
}

}  // namespace palimpsest::testing
