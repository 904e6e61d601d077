// Passes over NCHW that write and read x-hat of some channels themselves (NormalizedChannels of kernels/abn.h).
#include "palimpsest/kernels/channel_slots.h"
#include "tests/kernels/abn_case.h"
#include "tests/support/compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

namespace palimpsest::testing {
namespace {

/// The tensors of a layer whose passes have x-hat of some channels, and of the same layer without: one that saves what
/// `c` says, and one that saves x-hat of all channels.
template <class T>
struct Layers {
  AbnCase c, all_normalized;
  kernels::AbnProblem problem;
  AbnTensors<T> plain, normalized;
  std::vector<int64_t> index;
  std::vector<bool> has_slot;
  std::vector<T> x_hat;

  Layers(const AbnCase& given, std::vector<int64_t> channels)
      : c(given),
        all_normalized(with_all_normalized(given)),
        problem(c.problem<T>()),
        plain(c),
        normalized(all_normalized),
        index(std::move(channels)),
        has_slot(static_cast<std::size_t>(c.shape.c)),
        x_hat(index.size() * static_cast<std::size_t>(c.shape.per_channel())) {
    run_cpu(c, plain);
    run_cpu(all_normalized, normalized);
    for (const int64_t channel : index) has_slot[static_cast<std::size_t>(channel)] = true;
  }

  kernels::NormalizedChannels slots() {
    return {index.data(), static_cast<int64_t>(index.size()), x_hat.data()};
  }

  static AbnCase with_all_normalized(AbnCase c) {
    c.saved = Saved::kNormalized;
    return c;
  }

  /// The channel of the i-th value in memory.
  std::size_t channel_at(int64_t i) const { return static_cast<std::size_t>(i / c.shape.s % c.shape.c); }
  /// The layer whose results a channel must have.
  AbnTensors<T>& wanted(int64_t channel) {
    return has_slot[static_cast<std::size_t>(channel)] ? normalized : plain;
  }

  /// The values of channels with slots of `of_slots`, and of the others of `of_others`.
  Buffer<T> mixed(Buffer<T>& of_slots, Buffer<T>& of_others) const {
    Buffer<T> result(c.shape.elements());
    for (int64_t i = 0; i < result.size(); ++i)
      result[i] = (has_slot[channel_at(i)] ? of_slots : of_others)[i];
    return result;
  }
};

template <class T>
void expect_forward(Layers<T>& l) {
  std::vector<T> want(l.x_hat.size());
  kernels::cpu::gather_channels(l.problem, l.index.data(), static_cast<int64_t>(l.index.size()),
                                l.normalized.saved_values.data(), want.data());
  for (const bool in_place : {false, true}) {
    for (const bool whole : {true, false}) {
      AbnTensors<T> t(l.c);
      std::fill(l.x_hat.begin(), l.x_hat.end(), T(0.0F));
      kernels::AbnForward forward = t.forward(l.c);
      if (in_place) forward.z = t.x.data();
      forward.normalized = l.slots();
      if (!whole) {
        t.mean = l.plain.mean, t.inv_std = l.plain.inv_std;
        forward.mean = t.mean.data(), forward.inv_std = t.inv_std.data();
      }
      whole ? kernels::cpu::abn_forward(l.problem, kEps, forward)
            : kernels::cpu::abn_apply(l.problem, forward);
      EXPECT_TRUE(same_bytes((in_place ? t.x : t.z).values(), l.plain.z.values()));
      EXPECT_TRUE(same_bytes(t.saved_values.values(), l.plain.saved_values.values()));
      EXPECT_TRUE(same_bytes(t.branch.values(), l.plain.branch.values()));
      EXPECT_TRUE(same_bytes(std::span<const T>(l.x_hat), std::span<const T>(want)));
    }
  }
}

bool is_curved(Activation activation) {
  return activation != Activation::kLeakyReLU;
}

/// A block that is narrower than a vector is computed value by value, where curved functions differ in the last bit.
template <class T>
::testing::AssertionResult same(const AbnCase& c, std::span<const T> got, std::span<const T> want) {
  return is_curved(c.activation) ? close(got, want, tolerance(dtype_of<T>()), c.seed) : same_bytes(got, want);
}

/// The saved values of channels with slots are broken: backward must not read them.
template <class T>
void expect_backward(Layers<T>& l) {
  using A = accumulate_t<T>;
  const auto m = static_cast<double>(l.c.shape.per_channel());
  const double reordered = sizeof(A) == 8 ? kReorderedF64 : kReorderedF32;
  AbnTensors<T> t = l.plain;
  if (!l.c.makes_z_again())  // otherwise z is made of it
    for (int64_t i = 0; i < l.c.shape.elements(); ++i)
      if (l.has_slot[l.channel_at(i)]) t.saved_tensor(l.c)[i] = T(NAN);
  kernels::AbnBackward backward = t.backward(l.c);
  backward.normalized = l.slots();
  kernels::cpu::abn_backward_reduce(l.problem, backward);
  std::vector<double> size(static_cast<std::size_t>(l.c.shape.c));
  for (int64_t i = 0; i < l.c.shape.elements(); ++i)
    size[l.channel_at(i)] += std::abs(static_cast<double>(l.plain.dz[i]));
  for (int64_t c = 0; c < l.c.shape.c; ++c) {
    AbnTensors<T>& want = l.wanted(c);
    const double allowed = 4 * reordered * size[static_cast<std::size_t>(c)];
    EXPECT_NEAR(t.sum_dy[c], want.sum_dy[c], allowed) << c;
    EXPECT_NEAR(t.sum_dy_xhat[c], want.sum_dy_xhat[c], allowed) << c;
  }
  const Buffer<A> sum_dy = t.sum_dy, sum_dy_xhat = t.sum_dy_xhat;

  // With the same sums the same bytes.
  for (int64_t c = 0; c < l.c.shape.c; ++c) {
    AbnTensors<T>& want = l.wanted(c);
    t.sum_dy[c] = want.sum_dy[c], t.sum_dy_xhat[c] = want.sum_dy_xhat[c];
  }
  kernels::cpu::abn_backward_apply(l.problem, backward, m);
  EXPECT_TRUE(same(l.c, t.dx.values(), l.mixed(l.normalized.dx, l.plain.dx).values()));
  if (l.c.has_residual) {
    EXPECT_TRUE(same(l.c, t.dresidual.values(), l.mixed(l.normalized.dresidual, l.plain.dresidual).values()));
  }
  EXPECT_TRUE(same_bytes(t.z_again.values(), l.plain.z_again.values()));

  // The whole pass, in place.
  kernels::cpu::abn_backward_reduce(l.problem, backward);
  kernels::cpu::abn_backward_apply(l.problem, backward, m);
  AbnTensors<T> whole = t;
  backward = whole.backward(l.c);
  backward.normalized = l.slots();
  backward.dx = whole.dz.data();
  kernels::cpu::abn_backward(l.problem, backward);
  EXPECT_TRUE(same_bytes(whole.dz.values(), t.dx.values()));
  EXPECT_TRUE(same_bytes(whole.dresidual.values(), t.dresidual.values()));
  EXPECT_TRUE(same_bytes(whole.sum_dy.values(), sum_dy.values()));
  EXPECT_TRUE(same_bytes(whole.sum_dy_xhat.values(), sum_dy_xhat.values()));

  // Statistics that are constants.
  AbnTensors<T> other = l.normalized;
  kernels::AbnBackward of_all = other.backward(l.all_normalized), of_plain = l.plain.backward(l.c);
  of_all.frozen_statistics = of_plain.frozen_statistics = true;
  kernels::cpu::abn_backward(l.all_normalized.template problem<T>(), of_all);
  kernels::cpu::abn_backward(l.problem, of_plain);
  backward = t.backward(l.c);
  backward.normalized = l.slots();
  backward.frozen_statistics = true;
  kernels::cpu::abn_backward(l.problem, backward);
  EXPECT_TRUE(same(l.c, t.dx.values(), l.mixed(other.dx, l.plain.dx).values()));
}

template <class T>
void expect_slots_in_passes(const AbnCase& c, const std::vector<int64_t>& channels) {
  SCOPED_TRACE(::testing::Message() << name_of(dtype_of<T>()) << " " << c << ", " << channels.size()
                                    << " slots");
  Layers<T> l(c, channels);
  expect_forward(l);
  expect_backward(l);
}

TEST(NormalizedChannels, AreWrittenAndReadByThePasses) {
  // Planes of several segments; parts of a plane; planes; strips, with slots at their ends and side by side; the last
  // strip narrower; one image.
  for (const Shape3& shape : {Shape3{8, 3, 18000}, Shape3{1, 3, 140000}, Shape3{3, 40, 225}, Shape3{5, 2, 2},
                              Shape3{4, 300, 49}, Shape3{16, 270, 9}, Shape3{1, 64, 49}}) {
    for (const Saved saved :
         {Saved::kOutput, Saved::kOutputForm1, Saved::kPreActivation, Saved::kOutputBit}) {
      const AbnCase c{.shape = shape,
                      .activation = saved == Saved::kOutputBit ? Activation::kGELU : Activation::kLeakyReLU,
                      .saved = saved,
                      .has_residual = saved != Saved::kPreActivation};
      std::vector<int64_t> channels{shape.c - 1, 0};
      if (shape.c > 20) channels.insert(channels.end(), {15, 16, 7, 1});
      expect_slots_in_passes<float>(c, channels);
      expect_slots_in_passes<BFloat16>(c, channels);
      expect_slots_in_passes<Float16>(c, channels);
      expect_slots_in_passes<double>(c, {shape.c / 2});
    }
  }
}

TEST(NormalizedChannels, LeaveTheBytesOfZThatIsMadeAgain) {
  // Rows of one channel that are narrower than a vector, and strips of two channels or more that are not.
  for (const Shape3& shape : {Shape3{4, 34, 9}, Shape3{4, 64, 4}, Shape3{3, 40, 225}}) {
    for (const Activation activation : {Activation::kELU, Activation::kSiLU, Activation::kGELU}) {
      for (const bool has_residual : {false, true}) {
        const AbnCase c{.shape = shape,
                        .activation = activation,
                        .activation_param = default_param(activation),
                        .saved = Saved::kPreActivation,
                        .has_residual = has_residual};
        expect_slots_in_passes<float>(c, {0, 7});
        expect_slots_in_passes<BFloat16>(c, {0, 7});
        expect_slots_in_passes<Float16>(c, {0, 7});
        expect_slots_in_passes<double>(c, {0, 7});
      }
    }
  }
}

TEST(NormalizedChannels, AreReadWithoutWeightsWithAResidualsReLUAndOffALine) {
  for (const Shape3& shape : {Shape3{4, 300, 49}, Shape3{3, 33, 225}}) {
    AbnCase c{.shape = shape, .has_residual = true, .relu_residual = true, .mean = 100, .misaligned_by = 3};
    expect_slots_in_passes<float>(c, {2, 17});
    expect_slots_in_passes<BFloat16>(c, {2, 17});
    c.has_weight = c.has_bias = false;
    expect_slots_in_passes<float>(c, {2, 17});
    expect_slots_in_passes<BFloat16>(c, {2, 17});
  }
}

TEST(NormalizedChannels, OfUnusedSlotsStayAsTheyAre) {
  const AbnCase c{.shape = {4, 300, 49}};
  AbnTensors<float> plain(c), t(c);
  run_cpu(c, plain);
  const int64_t index[] = {7 - 300, 299 - 300};
  std::vector<float> values(static_cast<std::size_t>(2 * c.shape.per_channel()), 42);
  kernels::AbnForward forward = t.forward(c);
  kernels::AbnBackward backward = t.backward(c);
  forward.normalized = backward.normalized = {index, 2, values.data()};
  kernels::cpu::abn_forward(c.problem<float>(), kEps, forward);
  kernels::cpu::abn_backward(c.problem<float>(), backward);
  EXPECT_TRUE(same_bytes(t.z.values(), plain.z.values()));
  EXPECT_TRUE(same_bytes(t.dx.values(), plain.dx.values()));
  EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return value == 42; }));
}

TEST(NormalizedChannels, AreRefusedWhereAChannelIsNoRunOfMemory) {
  const int64_t index[] = {1};
  float values[18];
  for (const AbnCase& c :
       {AbnCase{.shape = {2, 4, 9}, .layout = Layout::kChannelsLast}, AbnCase{.shape = {2, 4, 1}}}) {
    AbnTensors<float> t(c);
    const auto problem = c.problem<float>();
    kernels::AbnForward forward = t.forward(c);
    kernels::AbnBackward backward = t.backward(c);
    forward.normalized = backward.normalized = {index, 1, values};
    EXPECT_THROW(kernels::cpu::abn_forward(problem, kEps, forward), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_apply(problem, forward), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_backward_reduce(problem, backward), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_backward_apply(problem, backward, 18), std::invalid_argument);
    EXPECT_THROW(kernels::cpu::abn_backward(problem, backward), std::invalid_argument);
  }
}

}  // namespace
}  // namespace palimpsest::testing
