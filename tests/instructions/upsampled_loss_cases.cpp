#include "palimpsest/kernels/upsampled_loss.h"
#include "tests/instructions/cases.h"
#include "tests/instructions/tensors.h"

namespace palimpsest::instructions {
namespace {

using kernels::CrossEntropyRules;
using kernels::UpsampledProblem;

struct Loss {
  Tensor<float> x, gradient;
  Tensor<uint8_t> ids;

  explicit Loss(const UpsampledProblem& p)
      : x(uniform<float>(p.n * p.c * p.in.h * p.in.w, -2, 2)),
        gradient(x.size()),
        ids(static_cast<std::size_t>(p.n * p.out.h * p.out.w)) {
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<uint8_t>(i % static_cast<std::size_t>(p.c));
  }

  void cross_entropy(const UpsampledProblem& p, const CrossEntropyRules& rules) {
    kernels::cpu::upsampled_cross_entropy(p, x.data(), {.ids = ids.data(), .bytes = true}, rules,
                                          gradient.data());
  }
};

}  // namespace

std::vector<Case> upsampled_loss_cases() {
  std::vector<Case> cases;
  for (const Layout layout : {Layout::kNCHW, Layout::kChannelsLast}) {
    const UpsampledProblem p{.n = 1, .c = 19, .in = {9, 9}, .out = {72, 72}, .layout = layout};
    const int64_t values = p.n * p.c * p.out.h * p.out.w;
    const auto add = [&](const std::string& kernel, auto call) {
      cases.push_back(case_of<Loss>(kernel + " f32 " + name_of(layout), values, p, call));
    };
    add("upsampled_cross_entropy", [](Loss& loss, const UpsampledProblem& q) { loss.cross_entropy(q, {}); });
    add("upsampled_cross_entropy hardest quarter",
        [](Loss& loss, const UpsampledProblem& q) { loss.cross_entropy(q, {.share = 0.25}); });
    add("upsampled_argmax", [](Loss& loss, const UpsampledProblem& q) {
      kernels::cpu::upsampled_argmax(q, loss.x.data(), true, loss.ids.data());
    });
  }
  return cases;
}

}  // namespace palimpsest::instructions
