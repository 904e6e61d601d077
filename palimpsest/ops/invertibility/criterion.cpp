#include "palimpsest/ops/invertibility/criterion.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/kernels/formulas/invertibility.h"
#include "palimpsest/ops/abn.h"
#include "palimpsest/ops/invertibility/host_vector.h"

#include <atomic>

namespace palimpsest::ops {
namespace {

std::atomic<int64_t> fallbacks{0}, side_channels{0}, missed_channels{0};

DType dtype_of(at::ScalarType storage) {
  switch (storage) {
    case at::kDouble:
      return DType::f64;
    case at::kHalf:
      return DType::f16;
    case at::kBFloat16:
      return DType::bf16;
    default:
      return DType::f32;
  }
}

}  // namespace

std::vector<int64_t> degenerate_channels(const RecoveryLayer& layer, const RecoveryValues& values) {
  const kernels::InvertibilityCriterion criterion(layer.activation, dtype_of(layer.storage));
  const HostVector gamma(values.weight, 1), beta(values.bias, 0), rms(values.residual_rms, 0),
      gamma_moved(values.weight_moved, 0), beta_moved(values.bias_moved, 0);
  std::vector<int64_t> result;
  for (int64_t c = 0; c < layer.channels; ++c)
    if (!criterion.is_invertible_within(gamma.at(c), gamma_moved.at(c), beta.at(c), beta_moved.at(c),
                                        rms.at(c)))
      result.push_back(c);
  return result;
}

void count_fallback() {
  if (!recomputing()) ++fallbacks;
}
void count_side_channels(int64_t channels) {
  if (!recomputing()) side_channels += channels;
}
void count_missed_channels(int64_t channels) {
  missed_channels += channels;
}
int64_t abn_missed_channel_count() {
  return missed_channels;
}
int64_t abn_fallback_count() {
  return fallbacks;
}
int64_t abn_side_channel_count() {
  return side_channels;
}
void reset_abn_fallback_count() {
  fallbacks = 0;
  side_channels = 0;
  missed_channels = 0;
}

}  // namespace palimpsest::ops
