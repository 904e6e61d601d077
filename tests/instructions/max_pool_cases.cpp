#include "palimpsest/kernels/max_pool.h"
#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

namespace palimpsest::instructions {
namespace {

using kernels::MaxPoolProblem;

template <class S>
struct Pool {
  Tensor<S> x, z, dz, dx;
  Tensor<uint8_t> argmax;

  explicit Pool(const MaxPoolProblem& p)
      : x(uniform<S>(p.planes() * p.in.h * p.in.w, -1, 1)),
        z(static_cast<std::size_t>(p.planes() * p.out.h * p.out.w)),
        dz(uniform<S>(static_cast<int64_t>(z.size()), -1, 1)),
        dx(x.size()),
        argmax(z.size()) {}

  void forward(const MaxPoolProblem& p) {
    kernels::cpu::max_pool_forward(p, x.data(), z.data(), argmax.data());
  }
  void backward(const MaxPoolProblem& p) {
    kernels::cpu::max_pool_backward(p, dz.data(), argmax.data(), dx.data());
  }
};

void add(std::vector<Case>& cases, const std::string& name, const MaxPoolProblem& problem) {
  const int64_t values = problem.planes() * problem.in.h * problem.in.w;
  dispatch_float(problem.dtype, [&]<class S>() {
    const auto forward = std::mem_fn(&Pool<S>::forward), backward = std::mem_fn(&Pool<S>::backward);
    cases.push_back(case_of<Pool<S>>("max_pool_forward " + name, values, problem, forward));
    cases.push_back(case_of<Pool<S>>("max_pool_backward " + name, values, problem, backward, forward));
  });
}

}  // namespace

std::vector<Case> max_pool_cases() {
  std::vector<Case> cases;
  for (const auto& [dtype, type] : kDTypes)
    for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast})
      add(cases, type + " " + name_of(layout),
          {.n = 1,
           .c = 32,
           .in = {55, 55},
           .out = {28, 28},
           .window = {{3, 3}, {2, 2}, {1, 1}, {1, 1}},
           .layout = layout,
           .dtype = dtype});
  return cases;
}

}  // namespace palimpsest::instructions
