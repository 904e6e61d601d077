#include "palimpsest/kernels/gates.h"
#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

namespace palimpsest::instructions {
namespace {

using kernels::GatesProblem;

struct Gates {
  Tensor<float> y, product, dproduct, dy, gate, means;

  explicit Gates(const GatesProblem& p)
      : y(uniform<float>(p.shape.elements(), -1, 1)),
        product(y.size()),
        dproduct(y),
        dy(y.size()),
        gate(uniform<float>(p.shape.n * p.shape.c, 0, 1)),
        means(gate.size()) {}
};

}  // namespace

std::vector<Case> gates_cases() {
  const GatesProblem p{.shape = {2, 64, 361}, .activation = Activation::kSiLU};
  std::vector<Case> cases;
  const auto add = [&](const std::string& kernel, auto call) {
    cases.push_back(case_of<Gates>(kernel + " silu", p.shape.elements(), p, call));
  };
  add("activation_means",
      [](Gates& g, const GatesProblem& q) { kernels::cpu::activation_means(q, g.y.data(), g.means.data()); });
  add("gated_forward", [](Gates& g, const GatesProblem& q) {
    kernels::cpu::gated_forward(q, g.y.data(), g.gate.data(), g.product.data());
  });
  add("gated_backward_reduce", [](Gates& g, const GatesProblem& q) {
    kernels::cpu::gated_backward_reduce(q, g.y.data(), g.gate.data(), g.dproduct.data(), g.means.data(),
                                        nullptr);
  });
  add("gated_backward_apply", [](Gates& g, const GatesProblem& q) {
    kernels::cpu::gated_backward_apply(q, g.y.data(), g.gate.data(), g.means.data(), g.dproduct.data(),
                                       g.dy.data());
  });
  return cases;
}

}  // namespace palimpsest::instructions
