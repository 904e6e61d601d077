#include "palimpsest/kernels/channel_slots.h"

#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/formulas/abn_formulas.h"
#include "palimpsest/kernels/formulas/channel_slots.h"
#include "palimpsest/kernels/formulas/invertibility.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace palimpsest::kernels::cpu {
namespace {

/// Adds the squares of `count` values, `step` apart, to those of their channels.
template <class S>
void add_squares(const S* values, int64_t step, int64_t count, bool relu, double* __restrict squares) {
  for (int64_t c = 0; c < count; ++c) {
    const auto value = static_cast<double>(values[c * step]);
    const double kept = value > 0 || !relu ? value : 0;
    squares[c] += kept * kept;
  }
}

/// Returns the root mean square of each channel's residual; 0 if there is none.
template <class S>
std::vector<double> sampled_rms(const AbnProblem& problem, const S* residual) {
  constexpr int64_t kTogether = 256;
  const int64_t channels = problem.shape.c;
  std::vector<double> rms(static_cast<std::size_t>(channels));
  if (!residual) return rms;
  const ResidualSample sample(problem.shape, problem.layout);
  std::vector<int64_t> offsets(static_cast<std::size_t>(sample.values()));
  for (int64_t i = 0; i < sample.values(); ++i) offsets[static_cast<std::size_t>(i)] = sample.at(0, i);
  const int64_t step = problem.layout == Layout::kNCHW ? problem.shape.s : 1;
  // Neighbouring channels of channels-last share cache lines, so the channels are the inner loop.
  parallel_tasks(ceil_divide(channels, kTogether), [&](int64_t task) {
    const int64_t first = task * kTogether, count = std::min(kTogether, channels - first);
    double* const own = rms.data() + first;
    for (const int64_t offset : offsets)
      add_squares(residual + offset + first * step, step, count, problem.relu_residual, own);
    for (int64_t c = 0; c < count; ++c) own[c] = std::sqrt(own[c] / static_cast<double>(offsets.size()));
  });
  return rms;
}

template <class S>
void choose(const AbnProblem& problem, const ChannelSlots& tensors) {
  using T = accumulate_t<S>;
  const int64_t channels = problem.shape.c;
  const InvertibilityCriterion criterion(problem.activation, problem.dtype, problem.activation_param);
  const auto* const weight = static_cast<const T*>(tensors.weight);
  const auto* const bias = static_cast<const T*>(tensors.bias);
  const std::vector<double> rms = sampled_rms(problem, static_cast<const S*>(tensors.residual));
  SlotCounts counts;
  for (int64_t c = 0; c < channels; ++c) {
    const double w = value_or(weight, c, 1), b = value_or(bias, c, 0);
    const Outlook outlook = criterion.outlook(w, b, rms[static_cast<std::size_t>(c)], tensors.counts_near);
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
