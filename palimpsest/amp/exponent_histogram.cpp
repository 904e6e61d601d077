#include "palimpsest/amp/exponent_histogram.h"

#include "palimpsest/ops/exponent_counts.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace palimpsest::amp {
namespace {

static_assert(ExponentHistogram::kLowest == ops::kLowestExponent &&
              ExponentHistogram::kHighest == ops::kHighestExponent);

constexpr int kHighestScaleExponent = 24;

/// The highest bin in which every value is below 65504, which lies in the next bin.
constexpr int kTopExponent = 14;

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::frexp(value, &exponent) == 0.5;
}

}  // namespace

void ExponentHistogram::add(const at::Tensor& gradient, double scale) {
  if (!gradient.defined()) return;
  if (gradient.scalar_type() == at::kDouble) return add(gradient.to(at::kFloat), scale);
  if (!is_power_of_two(scale)) return add(gradient.to(at::kFloat).div(scale));
  const int shift = std::ilogb(scale);
  const ops::ExponentCounts counts = ops::exponent_counts(gradient);
  values_ += gradient.numel();
  zero_ += counts.zero;
  not_finite_ += counts.infinite + counts.nan;
  for (size_t i = 0; i < counts.finite.size(); ++i) {
    // The first and the last bin also hold the values that the scale moves beyond them.
    const auto bin = std::clamp<int64_t>(static_cast<int64_t>(i) - shift, 0, kHighest - kLowest);
    counts_[static_cast<size_t>(bin)] += counts.finite[i];
  }
}

void ExponentHistogram::add_gradients(const torch::optim::Optimizer& optimizer, double scale) {
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params()) add(parameter.grad(), scale);
}

void ExponentHistogram::add(const ExponentHistogram& other) {
  values_ += other.values_;
  zero_ += other.zero_;
  not_finite_ += other.not_finite_;
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
}

ExponentHistogram::Shares ExponentHistogram::shares() const {
  Shares s;
  if (values_ == 0) return s;
  const auto n = static_cast<double>(values_);
  const int saved = kLeastHalfExponent - std::ilogb(recommended_scale());
  s.zero = static_cast<double>(zero_) / n;
  s.above = static_cast<double>(not_finite_) / n;
  for (int e = kLowest; e <= kHighest; ++e) {
    const double share = static_cast<double>(count(e)) / n;
    if (e < kLeastHalfExponent) s.lost += share;
    if (e < kLeastHalfExponent && e >= saved) s.recoverable += share;
    if (e > 15) s.above += share;
  }
  return s;
}

double ExponentHistogram::recommended_scale() const {
  for (int e = kHighest; e >= kLowest; --e)
    if (count(e) > 0) return std::ldexp(1.0, std::min(kTopExponent - e, kHighestScaleExponent));
  return 1;
}

ExponentHistogram::Bars ExponentHistogram::bars() const {
  Bars bars;
  int low = kLowest, high = kHighest;
  while (low <= high && count(low) == 0) ++low;
  while (high >= low && count(high) == 0) --high;
  for (int e = low; e <= high; ++e) {
    bars.exponents.push_back(e);
    bars.shares.push_back(static_cast<double>(count(e)) / static_cast<double>(values_));
  }
  return bars;
}

ExponentHistogram ExponentHistogram::from_bars(const Bars& bars, int64_t values, double zero) {
  ExponentHistogram h;
  const auto count_of = [&](double share) { return std::llround(share * static_cast<double>(values)); };
  h.values_ = values;
  h.zero_ = count_of(zero);
  h.not_finite_ = values - h.zero_;
  for (size_t i = 0; i < bars.exponents.size(); ++i) {
    const auto exponent = static_cast<int>(bars.exponents[i]);
    if (exponent < kLowest || exponent > kHighest) continue;
    h.counts_[static_cast<size_t>(exponent - kLowest)] = count_of(bars.shares[i]);
    h.not_finite_ -= count_of(bars.shares[i]);
  }
  h.not_finite_ = std::max<int64_t>(0, h.not_finite_);
  return h;
}

std::string ExponentHistogram::text() const {
  const Shares s = shares();
  std::string text = fmt::format(
      "{} gradients: {:.2f} % zero, {:.2f} % below 2^-24 (lost in f16), {:.2f} % above 65504; recommended "
      "constant scale {}, which recovers {:.2f} %\n",
      values_, 100 * s.zero, 100 * s.lost, 100 * s.above, recommended_scale(), 100 * s.recoverable);
  const Bars b = bars();
  constexpr double kColumns = 50;
  const double highest = b.shares.empty() ? 1 : *std::ranges::max_element(b.shares);
  for (size_t i = 0; i < b.shares.size(); ++i)
    text += fmt::format("2^{:<5} {:6.2f} % {}\n", b.exponents[i], 100 * b.shares[i],
                        std::string(static_cast<size_t>(std::lround(kColumns * b.shares[i] / highest)), '#'));
  return text;
}

namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// True for a node whose gradient is that of a weight, or of a tensor that another node counts.
bool passes_on(std::string_view name) {
  for (const char* part : {"Copy", "View", "Transpose", "TBackward", "Permute", "Reshape", "Expand", "Alias",
                           "AddBackward", "Slice", "Select", "Squeeze", "Clone", "AccumulateGrad", "Error"})
    if (name.find(part) != std::string_view::npos) return true;
  return false;
}

class Observer final : public torch::autograd::FunctionPreHook {
 public:
  Observer(ExponentHistogram& histogram, double scale) : histogram_(histogram), scale_(scale) {}

  variable_list operator()(const variable_list& gradients) override {
    for (const auto& gradient : gradients)
      if (gradient.defined() &&
          (gradient.scalar_type() == at::kHalf || gradient.scalar_type() == at::kBFloat16))
        histogram_.add(gradient, scale_);
    return gradients;
  }

 private:
  ExponentHistogram& histogram_;
  double scale_;
};

}  // namespace

void observe_activation_gradients(const at::Tensor& loss, ExponentHistogram& histogram, double scale) {
  std::unordered_set<const Node*> seen;
  std::vector<Node*> todo;
  const auto visit = [&](Node* node) {
    if (node != nullptr && seen.insert(node).second) todo.push_back(node);
  };
  visit(loss.grad_fn().get());
  while (!todo.empty()) {
    Node* const node = todo.back();
    todo.pop_back();
    if (!passes_on(node->name())) node->add_pre_hook(std::make_unique<Observer>(histogram, scale));
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
}

}  // namespace palimpsest::amp
