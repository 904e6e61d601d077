#include "palimpsest/kernels/group_statistics.h"

#include <cmath>

// Two passes over the parts: first the mean of all values, then the deviations from it.
namespace palimpsest::kernels::reference {
namespace {

void move(void* running, DType dtype, int64_t c, double batch, double momentum) {
  const auto in = [&](auto* values) {
    const double moved = (1 - momentum) * static_cast<double>(values[c]) + momentum * batch;
    values[c] = static_cast<std::remove_reference_t<decltype(values[c])>>(moved);
  };
  if (dtype == DType::f64)
    in(static_cast<double*>(running));
  else
    in(static_cast<float*>(running));
}

}  // namespace

void merge_statistics(const GroupParts& parts, double eps, const GroupStatistics& merged, DType running_dtype,
                      const RunningStatistics& running) {
  const auto part = [&](int64_t rank) { return parts.values + rank * (2 * parts.channels + 1); };
  double count = 0;
  for (int64_t rank = 0; rank < parts.ranks; ++rank) count += part(rank)[2 * parts.channels];
  *merged.count = count;
  for (int64_t c = 0; c < parts.channels; ++c) {
    double sum = 0, squares = 0;
    const auto for_values = [&](const auto& function) {
      for (int64_t rank = 0; rank < parts.ranks; ++rank)
        if (const double n = part(rank)[2 * parts.channels]; n > 0)
          function(n, part(rank)[c], part(rank)[parts.channels + c]);
    };
    for_values([&](double n, double mean, double) { sum += n * mean; });
    const double mean = count > 0 ? sum / count : 0;
    for_values([&](double n, double own, double var) { squares += n * (var + (own - mean) * (own - mean)); });
    merged.mean[c] = mean;
    merged.var[c] = count > 0 ? squares / count : 0;
    if (merged.inv_std) merged.inv_std[c] = 1 / std::sqrt(merged.var[c] + eps);
    if (!running.mean || count < 2) continue;
    move(running.mean, running_dtype, c, mean, running.momentum);
    move(running.var, running_dtype, c, squares / (count - 1), running.momentum);
  }
}

}  // namespace palimpsest::kernels::reference
