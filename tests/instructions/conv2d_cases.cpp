#include "palimpsest/kernels/conv2d.h"
#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

#include <stdexcept>

namespace palimpsest::instructions {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

/// Images whose values lie in S.
template <class S>
struct Convolution {
  Tensor<S> x, y;
  Tensor<float> w;

  explicit Convolution(const Conv2dProblem& p)
      : x(uniform<S>(p.n * p.in.h * p.in.w * p.c_in, -1, 1)),
        y(uniform<S>(p.n * p.out.h * p.out.w * p.c_out, -1, 1)),
        w(uniform<float>(p.weights(), -1, 1)) {}

  void run(const Conv2dProblem& p, Conv2dPass pass) {
    switch (pass) {
      case Conv2dPass::kForward:
        return kernels::cpu::conv2d_forward(p, x.data(), w.data(), y.data());
      case Conv2dPass::kBackwardInput:
        return kernels::cpu::conv2d_backward_input(p, y.data(), w.data(), nullptr, x.data());
      case Conv2dPass::kBackwardWeight:
        return kernels::cpu::conv2d_backward_weight(p, x.data(), y.data(), w.data());
    }
  }
};

struct Kind {
  std::string name;
  int64_t channels, groups, kernel_size;
  std::vector<Conv2dPass> passes;
};

template <class S>
void add_cases(DType dtype, const std::vector<Kind>& kinds, std::vector<Case>& cases) {
  for (const auto& [name, channels, groups, size, passes] : kinds) {
    const Conv2dProblem p{.n = 2,
                          .c_in = channels,
                          .c_out = channels,
                          .groups = groups,
                          .in = {19, 19},
                          .out = {19, 19},
                          .kernel_size = {size, size},
                          .stride = {1, 1},
                          .padding = {size / 2, size / 2},
                          .dilation = {1, 1},
                          .dtype = dtype};
    for (const Conv2dPass pass : passes) {
      const char* names[] = {"conv2d_forward ", "conv2d_backward_input ", "conv2d_backward_weight "};
      const auto run = [pass](Convolution<S>& tensors, const Conv2dProblem& q) { tensors.run(q, pass); };
      const auto require_kernel = [pass](Convolution<S>&, const Conv2dProblem& q) {
        if (!kernels::cpu::has_conv2d(q, pass)) throw std::logic_error("no kernel takes the problem");
      };
      cases.push_back(case_of<Convolution<S>>(names[static_cast<int>(pass)] + name,
                                              p.n * p.in.h * p.in.w * p.c_in, p, run, require_kernel));
    }
  }
}

}  // namespace

std::vector<Case> conv2d_cases() {
  const std::vector<Conv2dPass> all{Conv2dPass::kForward, Conv2dPass::kBackwardInput,
                                    Conv2dPass::kBackwardWeight};
  std::vector<Case> cases;
  add_cases<float>(DType::f32,
                   {{"winograd 3x3", 32, 1, 3, all},
                    {"in groups of 4 3x3", 32, 8, 3, all},
                    {"1x1", 64, 1, 1, all},
                    {"depthwise 3x3", 32, 32, 3, {Conv2dPass::kBackwardWeight}},
                    {"depthwise 5x5", 32, 32, 5, {Conv2dPass::kBackwardWeight}}},
                   cases);
  add_cases<Float16>(DType::f16, {{"winograd 3x3 f16", 32, 1, 3, all}, {"1x1 f16", 64, 1, 1, all}}, cases);
  add_cases<BFloat16>(DType::bf16, {{"winograd 3x3 bf16", 32, 1, 3, all}, {"1x1 bf16", 64, 1, 1, all}},
                      cases);
  return cases;
}

}  // namespace palimpsest::instructions
