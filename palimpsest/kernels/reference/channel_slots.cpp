#include "palimpsest/kernels/channel_slots.h"

#include "palimpsest/kernels/formulas/channel_slots.h"
#include "palimpsest/kernels/formulas/invertibility.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace palimpsest::kernels::reference {
namespace {

template <class S>
double rms_of(const AbnProblem& problem, const S* residual, int64_t c) {
  const ResidualSample sample(problem.shape, problem.layout);
  double squares = 0;
  for (int64_t i = 0; i < sample.values(); ++i) {
    auto value = static_cast<double>(residual[sample.at(c, i)]);
    if (problem.relu_residual) value = std::max(value, 0.0);
    squares += value * value;
  }
  return std::sqrt(squares / static_cast<double>(sample.values()));
}

}  // namespace

void choose_slots(const AbnProblem& problem, const ChannelSlots& tensors) {
  const int64_t channels = problem.shape.c;
  const InvertibilityCriterion criterion(problem.activation, problem.dtype, problem.activation_param);
  std::vector<int64_t> wanted, others;
  SlotCounts counts;
  dispatch_float(problem.dtype, [&]<class S>() {
    using T = accumulate_t<S>;
    for (int64_t c = 0; c < channels; ++c) {
      const double weight =
                       tensors.weight ? static_cast<double>(static_cast<const T*>(tensors.weight)[c]) : 1,
                   bias = tensors.bias ? static_cast<double>(static_cast<const T*>(tensors.bias)[c]) : 0,
                   rms = tensors.residual ? rms_of(problem, static_cast<const S*>(tensors.residual), c) : 0;
      const Outlook outlook = criterion.outlook(weight, bias, rms, tensors.counts_near);
      (outlook == Outlook::kNonInvertible ? wanted : others).push_back(c);
      counts.near += outlook == Outlook::kInvertible ? 0 : 1;
    }
  });
  counts.wanted = static_cast<int64_t>(wanted.size());
  tensors.report->counts = pack_counts(counts);
  const int64_t late = counts.wanted - tensors.slots;
  if (late > 0 && tensors.counts_late) tensors.report->late += static_cast<unsigned long long>(late);
  if (!tensors.index) return;
  for (int64_t slot = 0; slot < tensors.slots; ++slot)
    tensors.index[slot] = slot < counts.wanted
                              ? wanted[static_cast<std::size_t>(slot)]
                              : others[static_cast<std::size_t>(slot - counts.wanted)] - channels;
}

}  // namespace palimpsest::kernels::reference
