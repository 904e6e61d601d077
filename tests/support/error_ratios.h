#pragma once

#include "tests/support/relative_error.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace palimpsest::testing {

/// Errors of one way to compute some results by those of another, over several draws of parameters and data.
/// One draw is luck where a result has few values: its error is this or that side's by 20 times.
class ErrorRatios {
 public:
  void add(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& by,
           const std::vector<at::Tensor>& truth) {
    if (of_result_.empty()) of_result_.resize(truth.size());
    for (std::size_t i = 0; i < truth.size(); ++i) {
      const double error = relative_error(got[i], truth[i]), of_by = relative_error(by[i], truth[i]);
      // Within limits: a vector that is right by chance must not outweigh all others.
      of_result_[i].push_back({error, error == of_by ? 1 : std::clamp(error / of_by, 1e-2, 1e2)});
    }
  }

  std::size_t results() const { return of_result_.size(); }

  /// The median over draws: what lies beside a kink of the activation, and goes to its other side by
  /// rounding, is the largest error of a tenth of them.
  double median_ratio(std::size_t result) const { return median(result, &Entry::ratio); }
  double median_error(std::size_t result) const { return median(result, &Entry::error); }

  /// The geometric mean over draws and results.
  double mean_ratio() const {
    double sum = 0, count = 0;
    for (const auto& entries : of_result_)
      for (const Entry& e : entries) {
        sum += std::log(e.ratio);
        ++count;
      }
    return std::exp(sum / count);
  }

 private:
  struct Entry {
    double error, ratio;
  };

  double median(std::size_t result, double Entry::* of) const {
    std::vector<double> values;
    for (const Entry& e : of_result_[result]) values.push_back(e.*of);
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  std::vector<std::vector<Entry>> of_result_;
};

}  // namespace palimpsest::testing
