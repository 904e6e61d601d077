#include "palimpsest/kernels/conv2d.h"
#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

#include <stdexcept>

namespace palimpsest::instructions {
namespace {

using kernels::Conv2dPass;
using kernels::Conv2dProblem;

struct Convolution {
  Tensor<float> x, w, y;

  explicit Convolution(const Conv2dProblem& p)
      : x(uniform<float>(p.n * p.in.h * p.in.w * p.c_in, -1, 1)),
        w(uniform<float>(p.weights(), -1, 1)),
        y(uniform<float>(p.n * p.out.h * p.out.w * p.c_out, -1, 1)) {}

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

}  // namespace

std::vector<Case> conv2d_cases() {
  struct Kind {
    std::string name;
    int64_t channels, groups, kernel_size;
    std::vector<Conv2dPass> passes;
  };
  const std::vector<Conv2dPass> all{Conv2dPass::kForward, Conv2dPass::kBackwardInput,
                                    Conv2dPass::kBackwardWeight};
  std::vector<Case> cases;
  for (const auto& [name, channels, groups, size, passes] :
       {Kind{"winograd 3x3", 32, 1, 3, all}, Kind{"in groups of 4 3x3", 32, 8, 3, all},
        Kind{"1x1", 64, 1, 1, all}, Kind{"depthwise 3x3", 32, 32, 3, {Conv2dPass::kBackwardWeight}},
        Kind{"depthwise 5x5", 32, 32, 5, {Conv2dPass::kBackwardWeight}}}) {
    const Conv2dProblem p{.n = 2,
                          .c_in = channels,
                          .c_out = channels,
                          .groups = groups,
                          .in = {19, 19},
                          .out = {19, 19},
                          .kernel_size = {size, size},
                          .stride = {1, 1},
                          .padding = {size / 2, size / 2},
                          .dilation = {1, 1}};
    for (const Conv2dPass pass : passes) {
      const char* names[] = {"conv2d_forward ", "conv2d_backward_input ", "conv2d_backward_weight "};
      const auto run = [pass](Convolution& tensors, const Conv2dProblem& q) { tensors.run(q, pass); };
      const auto require_kernel = [pass](Convolution&, const Conv2dProblem& q) {
        if (!kernels::cpu::has_conv2d(q, pass)) throw std::logic_error("no kernel takes the problem");
      };
      cases.push_back(case_of<Convolution>(names[static_cast<int>(pass)] + name,
                                           p.n * p.in.h * p.in.w * p.c_in, p, run, require_kernel));
    }
  }
  return cases;
}

}  // namespace palimpsest::instructions
