#include "palimpsest/kernels/gates.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/cpu/dispatch.h"
#include "palimpsest/kernels/cpu/gates/kernels.h"

namespace palimpsest::kernels::cpu {
namespace gates {
namespace {

// A row of a part is 2 KiB: the processor prefetches along it, and a batch of few images still has many parts.
constexpr int64_t kColumns = 512;
static_assert(kColumns <= kMaxColumns);

/// Calls sweep(part, offset of its first value, offset of its first channel) for all parts, in parallel.
template <class Sweep>
void for_parts(const GatesProblem& problem, const Sweep& sweep) {
  const auto& [n, c, s] = problem.shape;
  const int64_t pieces = (c + kColumns - 1) / kColumns;
  parallel_tasks(n * pieces, [&, c = c, s = s](int64_t task) {
    const int64_t image = task / pieces, piece = task % pieces;
    const int64_t begin = c * piece / pieces, end = c * (piece + 1) / pieces;
    sweep(Part{{s, c, end - begin}, problem.activation, problem.activation_param}, image * s * c + begin,
          image * c + begin);
  });
}

}  // namespace
}  // namespace gates

bool has_gates(const GatesProblem& problem) {
  return problem.shape.elements() > 0 && problem.shape.c >= current_instruction_set().gates.lanes;
}

void activation_means(const GatesProblem& problem, const float* y, float* means) {
  const gates::Kernels& kernels = current_instruction_set().gates;
  gates::for_parts(problem, [&](const gates::Part& part, int64_t value, int64_t channel) {
    kernels.means(part, y + value, means + channel);
  });
}

void gated_forward(const GatesProblem& problem, const float* y, const float* gate, float* product) {
  const gates::Kernels& kernels = current_instruction_set().gates;
  gates::for_parts(problem, [&](const gates::Part& part, int64_t value, int64_t channel) {
    kernels.forward(part, y + value, gate + channel, product + value);
  });
}

void gated_backward_reduce(const GatesProblem& problem, const float* y, const float* gate,
                           const float* dproduct, float* dgate, float* product) {
  const gates::Kernels& kernels = current_instruction_set().gates;
  gates::for_parts(problem, [&](const gates::Part& part, int64_t value, int64_t channel) {
    kernels.reduce(part, y + value, gate + channel, dproduct + value, dgate + channel,
                   product ? product + value : nullptr);
  });
}

void gated_backward_apply(const GatesProblem& problem, const float* y, const float* gate, const float* dmean,
                          const float* dproduct, float* dy) {
  const gates::Kernels& kernels = current_instruction_set().gates;
  gates::for_parts(problem, [&](const gates::Part& part, int64_t value, int64_t channel) {
    kernels.apply(part, y + value, gate + channel, dmean + channel, dproduct + value, dy + value);
  });
}

}  // namespace palimpsest::kernels::cpu
