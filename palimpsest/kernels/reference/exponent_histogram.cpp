#include "palimpsest/kernels/exponent_histogram.h"

#include <cmath>
#include <stdexcept>

namespace palimpsest::kernels::reference {

void exponent_histogram(DType dtype, const void* x, int64_t n, ExponentHistogram& counts) {
  if (dtype == DType::f64) throw std::invalid_argument("exponents are counted of f32, f16 and bf16, got f64");
  dispatch_float(dtype, [&]<class T>() {
    for (int64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(static_cast<const T*>(x)[i]);
      int exponent = 0;
      std::frexp(value, &exponent);  // |value| in [2^(exponent - 1), 2^exponent)
      const int bin = std::isnan(value)   ? kNaNBin
                      : std::isinf(value) ? kInfinityBin
                      : value == 0        ? kZeroBin
                                          : bin_of_exponent(exponent - 1);
      ++counts[static_cast<std::size_t>(bin)];
    }
  });
}

}  // namespace palimpsest::kernels::reference
