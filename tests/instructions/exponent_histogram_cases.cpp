#include "palimpsest/kernels/exponent_histogram.h"

#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

namespace palimpsest::instructions {
namespace {

constexpr int64_t kValues = 90000;

template <class S>
struct Histogram {
  Tensor<S> x;
  kernels::ExponentHistogram counts{};

  explicit Histogram(DType) : x(uniform<S>(kValues, -1, 1)) {}

  void count(DType dtype) { kernels::cpu::exponent_histogram(dtype, x.data(), kValues, counts); }
};

}  // namespace

std::vector<Case> exponent_histogram_cases() {
  std::vector<Case> cases;
  for (const auto& [dtype, type] : kDTypes) {
    if (dtype == DType::f64) continue;
    dispatch_float(dtype, [&, dtype = dtype, name = "exponent_histogram " + type]<class S>() {
      cases.push_back(case_of<Histogram<S>>(name, kValues, dtype, std::mem_fn(&Histogram<S>::count)));
    });
  }
  return cases;
}

}  // namespace palimpsest::instructions
