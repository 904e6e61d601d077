#include "palimpsest/ops/invertibility/criterion.h"

#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/ops/invertibility/host_vector.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace palimpsest::ops::invertibility {
namespace {

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

}  // namespace

std::vector<int64_t> non_invertible_channels(const Layer& layer, const Values& values) {
  const StorageError storage = error_of(layer.storage);
  const BranchLoss branch = branch_loss(layer.activation, storage);
  const HostVector gamma(values.weight, 1), beta(values.bias, 0), rms(values.residual_rms, 0),
      gamma_moved(values.weight_moved, 0), beta_moved(values.bias_moved, 0);
  const auto degenerate_at = [&](double weight, double bias, double residual) {
    return is_degenerate(weight, bias, residual, layer.activation, storage, branch);
  };
  std::vector<int64_t> result;
  for (int64_t c = 0; c < layer.channels; ++c) {
    const double weight = std::abs(gamma.at(c)), bias = beta.at(c), residual = rms.at(c);
    bool degenerate = degenerate_at(weight, bias, residual);
    const double by = gamma_moved.at(c), bias_by = beta_moved.at(c);
    if (!degenerate && (by != 0 || bias_by != 0)) {
      // Smaller weights lose digits, larger ones saturate; of the bias, either end may.
      for (const double w : {std::max(weight - by, 0.0), weight + by})
        for (const double b : {bias - bias_by, bias + bias_by})
          degenerate = degenerate || degenerate_at(w, b, residual);
    }
    if (degenerate) result.push_back(c);
  }
  return result;
}

}  // namespace palimpsest::ops::invertibility
