#include "palimpsest/ops/degenerate.h"

#include "palimpsest/base/recomputing.h"
#include "palimpsest/kernels/branch_inverse.h"
#include "palimpsest/ops/abn.h"

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

namespace palimpsest::ops {
namespace {

std::atomic<int64_t> fallbacks{0}, side_channels{0};

struct StorageError {
  double epsilon, tolerance;
  double smallest;  ///< the smallest z that still holds a few digits
};

StorageError error_of(at::ScalarType storage) {
  switch (storage) {
    case at::kDouble:
      return {std::numeric_limits<double>::epsilon(), 1e-10, 0x1p-1022};
    case at::kHalf:
      return {0x1p-10, 0x1p-4, 0x1p-20};
    case at::kBFloat16:
      return {0x1p-7, 0x1p-1, 0x1p-126};
    default:
      return {0x1p-23, 0x1p-17, 0x1p-126};
  }
}

/// What storing z costs an activation with two branches.
struct BranchLoss {
  double minimum_at = 0;  ///< y there
  double flat_cubed = 0;  ///< u^3
  double lost = 0;        ///< the y whose z underflows

  /// What is_degenerate holds against the tolerance, where y is normal around `center`.
  double of(double center, double deviation) const {
    constexpr double kDensity = 0.39894228040143267794;
    const auto density = [](double k) { return kDensity * std::exp(-k * k / 2); };
    const double k = (lost - center) / deviation;
    const double flat = density((minimum_at - center) / deviation) / deviation * flat_cubed / 2;
    if (k < -12) return std::sqrt(flat) / 4;  // nothing is left of the bell
    const double below = (1 + k * k) * std::erfc(-k / std::sqrt(2.0)) / 2 + k * density(k);
    return std::sqrt(flat) / 4 + deviation * std::sqrt(std::max(below, 0.0));
  }
};

BranchLoss branch_loss(Activation activation, StorageError storage) {
  BranchLoss result;
  kernels::dispatch_activation<double>(activation, {0, {}}, [&]<class Act>(const Act& act) {
    if constexpr (kernels::InvertibleByBranch<Act>) {
      using B = kernels::Branches<Act>;
      const double flat = std::sqrt(-2 * storage.epsilon * B::kMinimum / B::kCurvature);
      const kernels::Precision exact{0x1p-52, 0x1p-1022};
      result = {B::kMinimumAt, flat * flat * flat,
                kernels::recover<double>(act, exact, -storage.smallest, /*rising=*/false).y};
    }
  });
  return result;
}

bool is_degenerate(double weight, double bias, double residual, Activation activation, StorageError storage,
                   const BranchLoss& branch) {
  const double gamma = std::abs(weight), limit = storage.tolerance * gamma;
  if (gamma == 0 || storage.epsilon * (std::abs(bias) + 4 * gamma + 4 * residual) > limit) return true;
  const double spread = gamma * gamma + residual * residual;
  switch (activation) {
    case Activation::kELU:
      return storage.epsilon * std::exp(spread - bias) > limit;
    case Activation::kSigmoid:
      return storage.epsilon * std::exp(spread + bias) > limit;
    case Activation::kTanh:
      return storage.epsilon * std::exp(4 * spread + 2 * std::abs(bias)) / 4 > limit;
    case Activation::kSoftplus:
      return storage.epsilon * 1.4 > limit;
    case Activation::kGELU:
    case Activation::kGELUTanh:
    case Activation::kSiLU:
      return storage.epsilon / 2 + branch.of(bias, std::sqrt(spread)) > limit;
    default:
      return false;
  }
}

/// A vector of any floating type and stride, read one value at a time: no copy of it at a layer's peak.
class Values {
 public:
  Values(const std::optional<at::Tensor>& t, double absent) : absent_(absent) {
    if (!t) return;
    host_ = t->cpu();  // waits for the device, if it is another one
    data_ = static_cast<const char*>(host_.const_data_ptr());
    step_ = host_.stride(0) * static_cast<int64_t>(host_.element_size());
    type_ = host_.scalar_type();
  }

  double at(int64_t i) const {
    if (!data_) return absent_;
    const char* const value = data_ + i * step_;
    switch (type_) {
      case at::kDouble:
        return *reinterpret_cast<const double*>(value);
      case at::kHalf:
        return *reinterpret_cast<const at::Half*>(value);
      case at::kBFloat16:
        return *reinterpret_cast<const at::BFloat16*>(value);
      default:
        return *reinterpret_cast<const float*>(value);
    }
  }

 private:
  at::Tensor host_;
  const char* data_ = nullptr;
  int64_t step_ = 0;
  at::ScalarType type_ = at::kFloat;
  double absent_;
};

/// The root mean square of each channel over at most 4 images and about 64 pixels of each: within 5 %. (Four
/// times as many took 1 % of a ResNeXt-50 step.)
at::Tensor sampled_rms(at::Tensor t, bool relu) {
  constexpr int64_t kImages = 4, kPixels = 64;
  t = t.narrow(0, 0, std::min(t.size(0), kImages));
  int64_t pixels = 1;
  for (int64_t d = 2; d < t.dim(); ++d) pixels *= t.size(d);
  // The same step along every axis; an axis that is shorter gives its first value.
  const double share = static_cast<double>(pixels) / kPixels;
  const auto step =
      t.dim() > 2
          ? std::max<int64_t>(1, std::llround(std::pow(share, 1.0 / static_cast<double>(t.dim() - 2))))
          : 1;
  std::vector<int64_t> reduced{0};
  for (int64_t d = 2; d < t.dim(); ++d) {
    t = t.slice(d, 0, t.size(d), step);
    reduced.push_back(d);
  }
  t = t.to(at::kDouble);
  if (relu) t = t.clamp_min(0);
  return t.square().mean(reduced).sqrt_();
}

}  // namespace

std::vector<int64_t> degenerate_channels(const RecoveryInputs& in) {
  const StorageError storage = error_of(in.storage);
  const BranchLoss branch = branch_loss(in.activation, storage);
  if (!in.weight && !in.bias && !in.residual) {
    const bool any = is_degenerate(1, 0, 0, in.activation, storage, branch);
    std::vector<int64_t> all(any ? static_cast<std::size_t>(in.channels) : 0);
    for (std::size_t c = 0; c < all.size(); ++c) all[c] = static_cast<int64_t>(c);
    return all;
  }
  const at::Tensor residual =
      in.residual && in.residual->numel() > 0 ? sampled_rms(*in.residual, in.relu_residual) : at::Tensor();
  const Values gamma(in.weight, 1), beta(in.bias, 0),
      rms(residual.defined() ? std::optional(residual) : std::nullopt, 0);
  std::vector<int64_t> result;
  for (int64_t c = 0; c < in.channels; ++c)
    if (is_degenerate(gamma.at(c), beta.at(c), rms.at(c), in.activation, storage, branch))
      result.push_back(c);
  return result;
}

void count_fallback() {
  if (!recomputing()) ++fallbacks;
}
void count_side_channels(int64_t channels) {
  if (!recomputing()) side_channels += channels;
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
}

}  // namespace palimpsest::ops
