#pragma once

#include "palimpsest/kernels/formulas/activation.h"

#include <cstdint>

/// y from z and one bit for activations that fall to a minimum and then rise, such as GELU.
/// The bit is y > y_min: y lies on the rising branch, else on the falling one.
///
/// Near the minimum z - z_min behaves as a square, so y is smooth in its root w (negative on the falling
/// branch): y = y_min + w^2 + w R(w), with R a polynomial in 1 / (w + shift). Further down the
/// falling branch, from z_min / 2, y is q times (SiLU: q^2 times) a polynomial in 1 / (q + shift), with
/// q^2 = log(z_min / z). These fits are right to about 1e-3; each step of Halley's method cubes that error.
///
/// Errors: rounding z by dz (half a unit in its last place) changes y by dz / act'(y) away from the minimum
/// and by sqrt(2 dz / act''(y_min)) at the minimum: by 2e-4 in f32, where act'(y) is as small. Where z
/// underflows on the falling branch, y is lost, and the deepest y that rounds to z takes its place (GELU
/// below -13 in f32 and bf16, below -5 in f16; SiLU below -92 and -20).
namespace palimpsest::kernels {

/// The fits of one activation, in two pieces. kNearScale and kNearOffset map the variable of `near` to [-1,
/// 1]; kFarScale and kFarOffset map that of `far`.
template <class Act>
struct Branches;

template <class T>
struct Branches<GELU<T>> {
  static constexpr double kMinimumAt = -0.75179152469356445746, kMinimum = -0.16997120747990366169;
  static constexpr double kCurvature = 0.431493992314;  ///< act''(y_min)
  static constexpr double kFitEnd = 5.6;                ///< z, and y, up to which `near` holds
  static constexpr double kIdentityFrom = 9;            ///< z = y to the last digit of f64
  static constexpr double kNearShift = 2.7915229043144842, kNearOffset = 2.8562523190294606,
                          kNearScale = 9.640630797573651;
  static constexpr double kFarShift = 0.7, kFarOffset = 1.1188280178126173, kFarScale = 3.247219648948851;
  static constexpr bool kFarLinear = false;  ///< whether y grows as q^2 rather than as q

  template <class V>
  PALIMPSEST_HOST_DEVICE static V near(V x) {
    constexpr T c[] = {1.18372779,  -1.46194335,  0.141540319, -0.104322826, 0.251751046, 0.644312881,
                       0.851490767, -0.730343728, -1.25691532, 0.135796117,  0.588565917};
    return polynomial<T>(c, x);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE static V far(V x) {
    constexpr T c[] = {-1.52349782,   0.230430904,    -0.151497403,   0.0324210177,   -0.00564433138,
                       0.00376308298, -0.00102512154, 1.12813276e-05, -2.51287073e-05};
    return polynomial<T>(c, x);
  }
};

template <class T>
struct Branches<GELUTanh<T>> {
  static constexpr double kMinimumAt = -0.75246142207101625849, kMinimum = -0.17004075057125405064;
  static constexpr double kCurvature = 0.430400091025;
  static constexpr double kFitEnd = 5.2;
  static constexpr double kIdentityFrom = 9;
  static constexpr double kNearShift = 2.7915825359750253, kNearOffset = 2.91650378572433,
                          kNearScale = 9.791259464310825;
  static constexpr double kFarShift = 4, kFarOffset = 1.37469652385262, kFarScale = 11.475850636444134;
  static constexpr bool kFarLinear = false;

  template <class V>
  PALIMPSEST_HOST_DEVICE static V near(V x) {
    constexpr T c[] = {1.20732929,  -1.44562418,  0.14519413, -0.109656835, 0.192348253, 0.498049504,
                       0.818341382, -0.480314635, -1.0780468, 0.0250108807, 0.48005097};
    return polynomial<T>(c, x);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE static V far(V x) {
    constexpr T c[] = {-1.31395418, 0.391283592,   0.0662471907, 0.0484605536, -0.0411857238,
                       0.102669725, -0.0923223308, 0.0325978014, 0.00997389516};
    return polynomial<T>(c, x);
  }
};

template <class T>
struct Branches<SiLU<T>> {
  static constexpr double kMinimumAt = -1.2784645427610737951, kMinimum = -0.27846454276107379511;
  static constexpr double kCurvature = 0.21781170572;
  static constexpr double kFitEnd = 17;
  static constexpr double kIdentityFrom = 41;
  static constexpr double kNearShift = 2.373138407806724, kNearOffset = 1.883026462388563,
                          kNearScale = 5.766052924777126;
  static constexpr double kFarShift = 1, kFarOffset = 1.1420887910889812, kFarScale = 3.9254946916193307;
  static constexpr bool kFarLinear = true;

  template <class V>
  PALIMPSEST_HOST_DEVICE static V near(V x) {
    constexpr T c[] = {1.6551566,  -2.26559528, 0.214240886, -0.181551057, 0.745649332, 1.1666048,
                       0.89572645, -1.57487767, -1.75521196, 0.435817228,  0.904764921};
    return polynomial<T>(c, x);
  }
  template <class V>
  PALIMPSEST_HOST_DEVICE static V far(V x) {
    constexpr T c[] = {-1.59364246, 1.17420615,    -0.862602159, 0.423499829, -0.19797617,
                       0.059810696, -0.0279559779, 0.0261801582, -0.012596581};
    return polynomial<T>(c, x);
  }
};

/// The activations whose output and one bit determine y.
template <class Act>
concept InvertibleByBranch = requires { Branches<Act>::kMinimumAt; };

template <class Act>
constexpr auto list_if_branched() {
  if constexpr (InvertibleByBranch<Act>)
    return ActivationList<Act>{};
  else
    return ActivationList<>{};
}

template <class... First, class... Second>
constexpr ActivationList<First..., Second...> operator+(ActivationList<First...>, ActivationList<Second...>) {
  return {};
}

template <class... Acts>
constexpr auto branched_of(ActivationList<Acts...>) {
  static_assert(((has_branches(Acts::kKind) == InvertibleByBranch<Acts>) && ...));
  return (ActivationList<>{} + ... + list_if_branched<Acts>());
}

/// The activations of AllActivations whose output and one bit determine y.
template <class T>
using BranchedActivations = decltype(branched_of(AllActivations<T>{}));

/// The least z - z_min that backward assumes, in units of epsilon * |z_min|. It stands for the middle of all
/// y that round to the same z at the minimum. Among values from 0.05 to 1 this value had the least error.
inline constexpr double kLeastDepth = 0.1;

/// y, and act'(y).
template <class V>
struct Recovered {
  V y, derivative;

  PALIMPSEST_HOST_DEVICE V dy(V dz) const { return dz * derivative; }
};

/// y and act'(y) from z and its branch, lane by lane: `rising` is a bool for V = T, else a mask of lanes.
/// `precision` is that of z's storage type. A z that was rounded to below the minimum gives y_min, as exactly
/// as that rounding allows; a NaN gives NaN.
template <class T, class Act, class V, class Mask>
PALIMPSEST_HOST_DEVICE Recovered<V> recover(const Act& act, Precision precision, V z, Mask rising) {
  using B = Branches<Act>;
  constexpr T kHigh = T(B::kMinimum), kLow = T(B::kMinimum - static_cast<double>(kHigh));
  constexpr bool kDouble = sizeof(T) == sizeof(double);
  constexpr int kSteps = kDouble ? 2 : 1;
  // Closer to the minimum than this, the rounding of act(y) would move y by more than the error of the fit.
  constexpr T kNoise = T((kDouble ? 0x1p-42 : 0x1p-13) * -B::kMinimum);
  const T least = T(precision.epsilon * -B::kMinimum * kLeastDepth), smallest = T(precision.smallest);

  const V deepest = V{} - smallest;
  z = rising ? z : (z > deepest ? deepest : z);
  const V exact = (z - kHigh) - kLow;
  const V depth = exact < least ? (V{} + least) : exact;
  z = exact < least ? (V{} + (least + kHigh)) : z;
  const V root = Math<V>::sqrt(depth);
  const V w = rising ? root : V(-root);
  const V near = w * B::near(V(T(B::kNearOffset) - T(B::kNearScale) / (w + T(B::kNearShift)))) +
                 (depth + T(B::kMinimumAt));

  const V size = -z < smallest ? (V{} + smallest) : V(-z);  // has a logarithm on the other branch, too
  const V squared = -Math<V>::log(V(size * T(-1 / B::kMinimum)));
  const V q = Math<V>::sqrt(squared);
  const V far =
      (B::kFarLinear ? squared : q) * B::far(V(T(B::kFarOffset) - T(B::kFarScale) / (q + T(B::kFarShift))));

  V y = rising ? near : (z > T(B::kMinimum / 2) ? far : near);
  y = z > T(B::kFitEnd) ? z : y;
  V derivative{};
  for (int step = 0; step < kSteps; ++step) {
    const Expansion<V> at = act.expansion(y);
    const V inverse_slope = T(1) / at.first;
    const V newton = (z - at.value) * inverse_slope;
    const V halley = newton / (newton * at.second * inverse_slope * T(0.5) + T(1));
    const V change = depth < kNoise ? V{} : halley;
    derivative = at.first + change * (at.second + change * at.third * T(0.5));
    y += change;
  }
  return {z > T(B::kIdentityFrom) ? z : y, z > T(B::kIdentityFrom) ? (V{} + T(1)) : derivative};
}

template <class T, class... Acts>
PALIMPSEST_HOST_DEVICE T minimum_in(ActivationList<Acts...>, Activation kind) {
  T minimum{};
  static_cast<void>(((kind == Acts::kKind && (minimum = T(Branches<Acts>::kMinimumAt), true)) || ...));
  return minimum;
}

/// Returns y at the minimum of an activation with two branches: the bit of a value is y > minimum_at.
template <class T>
PALIMPSEST_HOST_DEVICE T minimum_at(Activation kind) {
  return minimum_in<T>(BranchedActivations<T>{}, kind);
}

/// Returns the number of bytes that hold the bits of `elements` values: bit i % 8 (0 is the lowest) of byte
/// i / 8 belongs to the i-th value in memory. Three bytes are added, so that four bytes can be read at any
/// bit. Int: an integer, or libtorch's symbolic integer.
template <class Int>
constexpr Int branch_bytes(Int elements) {
  return (elements + 7) / 8 + 3;
}

}  // namespace palimpsest::kernels
