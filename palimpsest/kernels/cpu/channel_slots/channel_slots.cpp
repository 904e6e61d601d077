#include "palimpsest/kernels/channel_slots.h"

#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/formulas/channel_slots.h"
#include "palimpsest/kernels/formulas/invertibility.h"

#include <cmath>

namespace palimpsest::kernels::cpu {
namespace {

template <class S>
double sampled_rms(const AbnProblem& problem, const S* residual, int64_t c) {
  if (!residual) return 0;
  const ResidualSample sample(problem.shape, problem.layout);
  double squares = 0;
  for (int64_t i = 0; i < sample.values(); ++i) {
    const auto value = static_cast<double>(residual[sample.at(c, i)]);
    if (value > 0 || !problem.relu_residual) squares += value * value;
  }
  return std::sqrt(squares / static_cast<double>(sample.values()));
}

template <class S>
void choose(const AbnProblem& problem, const ChannelSlots& tensors) {
  using T = accumulate_t<S>;
  const int64_t channels = problem.shape.c;
  const InvertibilityCriterion criterion(problem.activation, problem.dtype, problem.activation_param);
  const auto* const weight = static_cast<const T*>(tensors.weight);
  const auto* const bias = static_cast<const T*>(tensors.bias);
  const auto* const residual = static_cast<const S*>(tensors.residual);
  SlotCounts counts;
  for (int64_t c = 0; c < channels; ++c) {
    const double w = value_or(weight, c, 1), b = value_or(bias, c, 0),
                 rms = sampled_rms(problem, residual, c);
    const Outlook outlook = criterion.outlook(w, b, rms, tensors.counts_near);
    const bool wanted = outlook == Outlook::kNonInvertible;
    counts.near += outlook == Outlook::kInvertible ? 0 : 1;
    if (wanted && counts.wanted++ < tensors.slots && tensors.index) tensors.index[counts.wanted - 1] = c;
  }
  int64_t k = 0, unused = counts.wanted;
  for (int64_t c = 0; tensors.index && unused < tensors.slots; ++c)
    if (k < counts.wanted && tensors.index[k] == c)
      ++k;
    else
      tensors.index[unused++] = c - channels;
  tensors.report->counts = pack_counts(counts);
  if (tensors.counts_late && counts.wanted > tensors.slots)
    tensors.report->late += static_cast<unsigned long long>(counts.wanted - tensors.slots);
}

}  // namespace

void choose_slots(const AbnProblem& problem, const ChannelSlots& tensors) {
  dispatch_float(problem.dtype, [&]<class S>() { choose<S>(problem, tensors); });
}

}  // namespace palimpsest::kernels::cpu
