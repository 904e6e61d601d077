#pragma once

#include "palimpsest/base/dtype.h"
#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/activation.h"
#include "palimpsest/kernels/formulas/branch_inverse.h"
#include "palimpsest/kernels/formulas/precision.h"

namespace palimpsest::kernels {

/// How exactly a storage type holds z, and how large an error of x-hat may become.
struct StorageError {
  double epsilon, tolerance;
  double smallest;  ///< the smallest z that still holds a few digits
  double lost;      ///< the largest error of a z near 0: some devices round all smaller z to 0
};

PALIMPSEST_HOST_DEVICE constexpr StorageError storage_error_of(DType storage) {
  const double epsilon = precision_of(storage).epsilon;
  switch (storage) {
    case DType::f64:
      return {epsilon, 1e-10, 0x1p-1022, 0x1p-1022};
    case DType::f16:
      return {epsilon, 64 * epsilon, 0x1p-20, 0x1p-25};
    default:
      return {epsilon, 64 * epsilon, 0x1p-126, 0x1p-126};
  }
}

/// Returns whether z of that storage type determines y at all: an invertible activation whose slope or alpha
/// (`param`) is so large that a layer with |weight| = 1 is not lost among the smallest z,
///   lost <= param * tolerance:  4.8e-7 in f16, 1.5e-33 in f32, 2.2e-298 in f64.
/// In bf16 7.9e-31, the larger limit: a sweep multiplies 1 / param by coefficients.
constexpr bool is_invertible_in(DType storage, Activation activation, double param) {
  const StorageError error = storage_error_of(storage);
  const bool falls_with_param = activation == Activation::kLeakyReLU || activation == Activation::kELU;
  const bool is_large =
      error.lost <= param * error.tolerance && (storage != DType::bf16 || param >= 0x1p-100);
  return is_invertible(activation) && (!falls_with_param || is_large);
}

/// What is to be expected of a channel: kNear if it may become non-invertible within a step.
enum class Outlook { kInvertible, kNear, kNonInvertible };

/// Decides whether a channel's normalized x can be recovered from z well enough for gradients of relative
/// error 1e-5 (f32) or 1e-10 (f64): x-hat = (y - bias - residual) / weight, and y is stored with an error of
/// about ulp(max |y|). A channel is invertible if
///   eps * (|bias| + 4 |weight| + 4 rms(residual)) <= tolerance * |weight|,   weight != 0,
/// because x-hat reaches four standard deviations. `tolerance` is 1e-10 in f64, else 64 eps (so |bias| <= 60
/// |weight|). An activation that saturates stores y with an error that grows as exp(|y|). The root mean
/// square of that error over a normal x-hat (and residual: spread = weight^2 + rms(residual)^2) must not
/// exceed tolerance * |weight| either (`lost` is the error of a z near 0):
///   leaky     lost / slope
///   ELU       max(eps, lost / alpha) * exp(spread - bias)
///   sigmoid   eps * exp(spread + bias) + underflow
///   tanh      eps * exp(4 spread + 2 |bias|) / 4
///   softplus  eps * 1.4 + underflow: log(2) / (1/2) at y = 0, less elsewhere
/// `underflow` is the root mean square of (y_lost - y) over y < y_lost, with y normal around bias: z falls as
/// exp(y) there, to less than the smallest z, and y_lost takes the place of y. y_lost = log(smallest z): -87
/// in f32 and bf16, -14 in f16, -708 in f64.
/// An activation with two branches (GELU, SiLU) loses y near its minimum, where z is flat, over a width of
/// u = sqrt(2 eps |z_min| / act''(y_min)) and by about as much; and on the falling branch, where z underflows.
/// With p the density of y at the minimum, the error is
///   eps / 2 + sqrt(p u^3 / 2) / 4 + underflow.
/// The second term counts a quarter, because this error has either sign and cancels in the sums.
class InvertibilityCriterion {
 public:
  /// `param`: leaky ReLU's slope or ELU's alpha.
  PALIMPSEST_HOST_DEVICE InvertibilityCriterion(Activation activation, DType storage, double param = 1)
      : activation_(activation), storage_(storage_error_of(storage)), lost_share_(storage_.lost / param) {
    dispatch_activation<double>(activation, {0, {}}, [&]<class Act>(const Act& act) {
      if constexpr (InvertibleByBranch<Act>) {
        using B = Branches<Act>;
        const double width = Math<double>::sqrt(-2 * storage_.epsilon * B::kMinimum / B::kCurvature);
        has_branches_ = true;
        minimum_at_ = B::kMinimumAt;
        width_cubed_ = width * width * width;
        lost_ = recover<double>(act, precision_of<double>(), -storage_.smallest, /*rising=*/false).y;
      }
      if constexpr (Act::kKind == Activation::kSoftplus || Act::kKind == Activation::kSigmoid)
        lost_ = Math<double>::log(storage_.smallest);
    });
  }

  PALIMPSEST_HOST_DEVICE bool is_invertible(double weight, double bias, double residual_rms) const {
    const double size = __builtin_fabs(weight), offset = __builtin_fabs(bias);
    const double limit = storage_.tolerance * size, epsilon = storage_.epsilon;
    if (size == 0 || epsilon * (offset + 4 * size + 4 * residual_rms) > limit) return false;
    const double spread = size * size + residual_rms * residual_rms;
    // First, while little else is alive: a kernel for f64 has few registers left.
    double error = underflow(bias, spread);
    switch (activation_) {
      case Activation::kLeakyReLU:
        error += lost_share_;
        break;
      case Activation::kELU:
        error += (epsilon < lost_share_ ? lost_share_ : epsilon) * Math<double>::exp(spread - bias);
        break;
      case Activation::kSigmoid:
        error += epsilon * Math<double>::exp(spread + bias);
        break;
      case Activation::kTanh:
        error += epsilon * Math<double>::exp(4 * spread + 2 * offset) / 4;
        break;
      case Activation::kSoftplus:
        error += epsilon * 1.4;
        break;
      default:
        if (has_branches_) error += epsilon / 2 + flatness(bias, spread);
    }
    return !(error > limit);
  }

  /// Returns kNear if the channel is invertible, but no longer if one step of an optimizer halves its weight,
  /// or lets weight or bias grow by a sixteenth. (More would count every tanh with a weight of 1.)
  /// `looks_ahead` = false: never kNear.
  PALIMPSEST_HOST_DEVICE Outlook outlook(double weight, double bias, double residual_rms,
                                         bool looks_ahead) const {
    // The present values, and four ends of what a step does.
    for (int corner = 0; corner < (looks_ahead ? 5 : 1); ++corner) {
      const double grown = corner == 0 ? 1 : 17.0 / 16;
      const double weight_by = corner == 1 || corner == 2 ? 0.5 : grown,
                   bias_by = corner % 2 == 1 ? 15.0 / 16 : grown;
      if (!is_invertible(weight_by * weight, bias_by * bias, residual_rms))
        return corner == 0 ? Outlook::kNonInvertible : Outlook::kNear;
    }
    return Outlook::kInvertible;
  }

 private:
  PALIMPSEST_HOST_DEVICE static double normal_density(double k) {
    return kNormalDensityAtZero * Math<double>::exp(-k * k / 2);
  }

  /// Returns the error of y at the minimum of an activation with two branches; y is normally distributed.
  PALIMPSEST_HOST_DEVICE double flatness(double mean, double variance) const {
    const double deviation = Math<double>::sqrt(variance);
    const double p = normal_density((minimum_at_ - mean) / deviation) / deviation;
    return Math<double>::sqrt(p * width_cubed_ / 2) / 4;
  }

  /// Returns the root mean square of (lost_ - y) over y < lost_; y is normally distributed.
  PALIMPSEST_HOST_DEVICE double underflow(double mean, double variance) const {
    if (!(lost_ > -__builtin_inf())) return 0;
    const double deviation = Math<double>::sqrt(variance);
    const double k = (lost_ - mean) / deviation;
    if (k < -12) return 0;  // no y lies so low
    const double below =
        (1 + k * k) * Math<double>::erfc(-k / 1.41421356237309504880) / 2 + k * normal_density(k);
    return deviation * Math<double>::sqrt(below < 0 ? 0 : below);
  }

  Activation activation_;
  StorageError storage_;
  double lost_share_;  ///< the error of y that a z near 0 leaves
  bool has_branches_ = false;
  double minimum_at_ = 0;           ///< y_min
  double width_cubed_ = 0;          ///< u^3
  double lost_ = -__builtin_inf();  ///< y_lost; -infinity if z does not underflow where y is large
};

}  // namespace palimpsest::kernels
