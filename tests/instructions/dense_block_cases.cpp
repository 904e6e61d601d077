#include "palimpsest/kernels/dense_block.h"
#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

namespace palimpsest::instructions {
namespace {

using kernels::DenseProductProblem;

template <class S>
struct Dense {
  using T = accumulate_t<S>;
  Tensor<S> x, w, h, dh;
  Tensor<T> gradient, dw;
  Tensor<double> mean, scale, shift, per_dy, sum_dy, sum_dy_x;

  explicit Dense(const DenseProductProblem& p)
      : x(uniform<S>(p.n * p.total * p.s, -1, 1)),
        w(uniform<S>(p.out * p.c, -1, 1)),
        h(static_cast<std::size_t>(p.n * p.out * p.s)),
        dh(uniform<S>(p.n * p.out * p.s, -1, 1)),
        gradient(x.size()),
        dw(w.size()),
        mean(uniform<double>(p.c, -0.5, 0.5)),
        scale(uniform<double>(p.c, 0.5, 1.5)),
        shift(mean),
        per_dy(scale),
        sum_dy(mean.size()),
        sum_dy_x(mean.size()) {}

  kernels::DenseNormalization norm() const { return {mean.data(), scale.data(), shift.data()}; }
  void forward(const DenseProductProblem& p) {
    kernels::cpu::dense_product(p, norm(), x.data(), w.data(), h.data());
  }
  void backward(const DenseProductProblem& p) {
    kernels::cpu::dense_product_backward(p, norm(),
                                         {x.data(), w.data(), dh.data(), per_dy.data(), gradient.data(),
                                          dw.data(), sum_dy.data(), sum_dy_x.data()});
  }
};

}  // namespace

std::vector<Case> dense_block_cases() {
  std::vector<Case> cases;
  for (const auto& [dtype, type] : kDTypes)
    for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast}) {
      const DenseProductProblem p{
          .n = 2, .s = 196, .c = 48, .total = 64, .out = 32, .layout = layout, .dtype = dtype};
      const std::string name = type + " " + name_of(layout);
      dispatch_float(dtype, [&]<class S>() {
        const int64_t values = p.n * p.s * p.c;
        cases.push_back(
            case_of<Dense<S>>("dense_product " + name, values, p, std::mem_fn(&Dense<S>::forward)));
        cases.push_back(
            case_of<Dense<S>>("dense_product_backward " + name, values, p, std::mem_fn(&Dense<S>::backward)));
      });
    }
  return cases;
}

}  // namespace palimpsest::instructions
