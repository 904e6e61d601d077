#include "palimpsest/ops/degenerate.h"

#include "palimpsest/ops/abn.h"

#include <ATen/Dispatch.h>

#include <atomic>
#include <cmath>
#include <limits>

namespace palimpsest::ops {
namespace {

std::atomic<int64_t> fallbacks{0};

template <class T>
constexpr double kTolerance = std::is_same_v<T, double> ? 1e-10 : 64 * std::numeric_limits<T>::epsilon();

template <class T>
bool degenerate(double weight, double bias, Activation activation) {
  constexpr double eps = std::numeric_limits<T>::epsilon();
  const double gamma = std::abs(weight);
  if (gamma == 0 || eps * (std::abs(bias) + 4 * gamma) > kTolerance<T> * gamma) return true;
  return activation == Activation::kELU && eps * std::exp(gamma * gamma - bias) > kTolerance<T> * gamma;
}

}  // namespace

bool any_degenerate(const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                    Activation activation) {
  if (!weight && !bias) return false;
  const at::Tensor& some = weight ? *weight : *bias;
  bool any = false;
  AT_DISPATCH_FLOATING_TYPES(some.scalar_type(), "any_degenerate", [&] {
    const scalar_t* gamma = weight ? weight->const_data_ptr<scalar_t>() : nullptr;
    const scalar_t* beta = bias ? bias->const_data_ptr<scalar_t>() : nullptr;
    const int64_t gamma_stride = weight ? weight->stride(0) : 0;
    const int64_t beta_stride = bias ? bias->stride(0) : 0;
    for (int64_t c = 0; c < some.numel() && !any; ++c)
      any = degenerate<scalar_t>(gamma ? gamma[c * gamma_stride] : 1, beta ? beta[c * beta_stride] : 0,
                                 activation);
  });
  return any;
}

void count_fallback() {
  ++fallbacks;
}
int64_t abn_fallback_count() {
  return fallbacks;
}
void reset_abn_fallback_count() {
  fallbacks = 0;
}

}  // namespace palimpsest::ops
