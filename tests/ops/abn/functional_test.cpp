#include "palimpsest/ops/abn/functional.h"

#include "palimpsest/ops/abn/native.h"
#include "palimpsest/ops/invertibility/saved_channels.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::ops::abn_detail {
namespace {

using testing::can_save;
using testing::kAllSaved;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChannels = 4;

at::Tensor image() {
  return torch::randn({3, kChannels, 5, 2});
}
at::Tensor vector() {
  return torch::randn(kChannels);
}

OptionalTensor clone(const OptionalTensor& t) {
  return t ? OptionalTensor(t->clone()) : std::nullopt;
}

/// Running statistics move: each pass gets its own.
ForwardArguments with_own_statistics(ForwardArguments a) {
  a.running_mean = clone(a.running_mean);
  a.running_var = clone(a.running_var);
  return a;
}

/// All tensors of a forward pass, the hidden ones revealed.
variable_list listed(const ForwardResult& r, const at::Tensor& x, const ForwardArguments& a) {
  const Statistics& s = r.statistics;
  return {r.z,
          r.saved_values,
          s.mean,
          s.inv_std,
          s.branch,
          invertibility::reveal(s.channel_values),
          x.clone(),
          invertibility::reveal(s.channel_index),
          or_undefined(a.running_mean),
          or_undefined(a.running_var)};
}

variable_list listed(const Gradients& g) {
  return {g.dx, g.dweight, g.dbias, g.dresidual, g.z};
}

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || at::equal(a, b));
}

bool same(const variable_list& a, const variable_list& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& s, const at::Tensor& t) { return same(s, t); });
}

/// An ordinary layer with one non-invertible channel, then layers of which each has one other field.
std::vector<std::pair<std::string, ForwardArguments>> layers() {
  torch::manual_seed(3);
  ForwardArguments plain;
  plain.settings.weight = vector();
  (*plain.settings.weight)[1] = 0;
  plain.settings.bias = vector();
  plain.settings.activation_param = 0.1;
  plain.running_mean = vector();
  plain.running_var = vector().abs() + 0.5;
  plain.for_backward = true;
  std::vector<std::pair<std::string, ForwardArguments>> all{{"plain", plain}};
  const auto add = [&](const char* name, auto change) {
    ForwardArguments a = plain;
    change(a);
    all.emplace_back(name, a);
  };
  const at::Tensor residual = image();
  add("residual", [&](auto& a) { a.settings.residual = residual; });
  add("relu_residual", [&](auto& a) { a.settings.residual = residual, a.settings.relu_residual = true; });
  add("weight", [](auto& a) { a.settings.weight.reset(); });
  add("bias", [](auto& a) { a.settings.bias.reset(); });
  add("activation", [](auto& a) { a.settings.activation = Activation::kSoftplus; });
  add("activation_param", [](auto& a) { a.settings.activation_param = 0.3; });
  add("running statistics", [](auto& a) { a.running_mean.reset(), a.running_var.reset(); });
  add("training", [](auto& a) { a.training = false; });
  add("momentum", [](auto& a) { a.momentum = 0.5; });
  add("eps", [](auto& a) { a.eps = 0.5; });
  add("for_backward", [](auto& a) { a.for_backward = false; });
  for (const Saved saved : kAllSaved)
    if (saved != Saved::kOutput && saved != Saved::kOutputForm1)  // form I differs in backward alone
      add("saved", [&](auto& a) {
        a.settings.saved = saved;
        if (!can_save(a.settings.activation, saved)) a.settings.activation = Activation::kGELU;
      });
  return all;
}

TEST(AbnSchema, EveryFieldOfAForwardPassGoesThroughTheDispatcher) {
  const at::Tensor x = image();
  variable_list plain;
  for (const auto& [name, arguments] : layers()) {
    SCOPED_TRACE(name + ", saved " + std::to_string(static_cast<int>(arguments.settings.saved)));
    const ForwardArguments a = with_own_statistics(arguments), b = with_own_statistics(arguments);
    const variable_list got = listed(forward(x, a), x, a);
    EXPECT_TRUE(same(got, listed(native::forward(x, b), x, b)));
    if (plain.empty())
      plain = got;
    else
      EXPECT_FALSE(same(got, plain)) << "a lost field would not be noticed";

    if (arguments.settings.saved == Saved::kInput) continue;  // x would have to stay
    const ForwardArguments c = with_own_statistics(arguments), d = with_own_statistics(arguments);
    const at::Tensor over = x.clone(), native_over = x.clone();
    const ForwardResult result = forward_(over, c), want = native::forward_(native_over, d);
    EXPECT_TRUE(same(listed(result, over, c), listed(want, native_over, d))) << "in place";
  }
}

TEST(AbnSchema, RecomputedOutputsHaveTheBytesOfTheForwardPass) {
  const at::Tensor x = image();
  for (const auto& [name, arguments] : layers())
    for (const Saved saved : {Saved::kPreActivation, Saved::kNormalized, Saved::kInput}) {
      SCOPED_TRACE(name + ", saved " + std::to_string(static_cast<int>(saved)));
      ForwardArguments a = with_own_statistics(arguments);
      a.settings.saved = saved;
      const ForwardResult result = forward(x, a);
      const at::Tensor z = recompute_output(saved_tensor(saved, x, result), a.settings,
                                            result.statistics.mean, result.statistics.inv_std);
      EXPECT_TRUE(at::equal(z, result.z));
    }
}

TEST(AbnSchema, EveryFieldOfABackwardPassGoesThroughTheDispatcher) {
  const at::Tensor x = image(), dz = image();
  for (const auto& [name, arguments] : layers()) {
    for (const Saved saved : kAllSaved) {
      ForwardArguments layer = with_own_statistics(arguments);
      layer.settings.saved = saved;
      layer.for_backward = true;
      if (!can_save(layer.settings.activation, saved)) continue;
      const ForwardResult result = forward(x, layer);
      const Statistics& s = result.statistics;
      BackwardArguments all{layer.settings,  saved_tensor(saved, x, result),
                            s.branch,        s.channel_values,
                            s.channel_index, s.mean,
                            s.inv_std,       layer.training};
      for (int wanted = 1; wanted < 16; ++wanted) {
        SCOPED_TRACE(name + ", saved " + std::to_string(static_cast<int>(saved)) + ", wanted " +
                     std::to_string(wanted));
        BackwardArguments a = all;
        a.need_sums = (wanted & 1) != 0;
        a.need_dx = (wanted & 2) != 0;
        a.need_dresidual = (wanted & 4) != 0 && layer.settings.residual;
        a.need_z = (wanted & 8) != 0 && kernels::is_before_activation(saved);
        if (!(a.need_sums || a.need_dx || a.need_dresidual || a.need_z)) continue;
        const Gradients got = backward(dz, a);
        EXPECT_TRUE(same(listed(got), listed(native::backward(dz, a))));
        EXPECT_EQ(got.dx.defined(), a.need_dx);
        EXPECT_EQ(got.dweight.defined() && got.dbias.defined(), a.need_sums);
        EXPECT_EQ(got.dresidual.defined(), a.need_dresidual);
        EXPECT_EQ(got.z.defined(), a.need_z);
        if (a.need_z) {
          EXPECT_TRUE(at::equal(got.z, result.z)) << "z";
        }

        if (!a.need_dx) continue;
        const at::Tensor over = dz.clone();
        const Gradients in_place = backward_(over, a);
        EXPECT_TRUE(same(listed(in_place), listed(got))) << "in place";
        EXPECT_EQ(in_place.dx.const_data_ptr(), over.const_data_ptr());
      }
    }
  }
}

/// A Function that runs a forward pass and saves what its backward pass reads. `look` sees the context of the
/// backward pass, whose gradients are undefined.
struct Probe {
  const ForwardArguments* arguments;
  std::function<void(AutogradContext*)> look;
};

class ProbeFunction : public torch::autograd::Function<ProbeFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const OptionalTensor& /*weight*/,
                            const OptionalTensor& /*bias*/, const OptionalTensor& /*residual*/,
                            const at::Tensor& more, const Probe* probe) {
    const ForwardArguments& a = *probe->arguments;
    const ForwardResult result = abn_detail::forward(x, a);
    save(ctx, saved_tensor(a.settings.saved, x, result), a, result.statistics, {more});
    ctx->saved_data["probe"] = reinterpret_cast<int64_t>(probe);
    return result.z;
  }
  static variable_list backward(AutogradContext* ctx, variable_list& /*gradients*/) {
    reinterpret_cast<const Probe*>(ctx->saved_data["probe"].toInt())->look(ctx);
    return variable_list(6);
  }
};

/// Calls `look` in a backward pass of the layer; `more` is the tensor saved behind those of the layer.
void in_backward(const at::Tensor& x, const ForwardArguments& a, const at::Tensor& more,
                 std::function<void(AutogradContext*)> look) {
  bool looked = false;
  const Probe probe{&a, [&](AutogradContext* ctx) {
                      looked = true;
                      look(ctx);
                    }};
  ProbeFunction::apply(x, a.settings.weight, a.settings.bias, a.settings.residual, more, &probe)
      .sum()
      .backward();
  EXPECT_TRUE(looked);
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr() && a.strides() == b.strides();
}

TEST(AbnSavedArguments, AreThoseOfTheForwardPass) {
  const at::Tensor x = image().set_requires_grad(true), more = image();
  for (const auto& [name, arguments] : layers()) {
    SCOPED_TRACE(name + ", saved " + std::to_string(static_cast<int>(arguments.settings.saved)));
    ForwardArguments a = with_own_statistics(arguments);
    a.for_backward = true;
    const ForwardResult want = [&] {
      const at::NoGradGuard no_grad;
      return forward(x, with_own_statistics(a));
    }();
    in_backward(x, a, more, [&](AutogradContext* ctx) {
      const BackwardArguments got = saved_arguments(ctx);
      const Settings &s = got.settings, &t = a.settings;
      EXPECT_EQ(s.activation, t.activation);
      EXPECT_EQ(s.activation_param, t.activation_param);
      EXPECT_EQ(s.saved, t.saved);
      EXPECT_EQ(s.relu_residual, t.relu_residual);
      EXPECT_EQ(got.training, a.training);
      EXPECT_TRUE(got.group.empty());
      for (const auto& [ours, given] :
           {std::pair{s.weight, t.weight}, {s.bias, t.bias}, {s.residual, t.residual}}) {
        ASSERT_EQ(ours.has_value(), given.has_value());
        if (ours) {
          EXPECT_TRUE(same_memory(*ours, *given));
        }
      }
      const Statistics& statistics = want.statistics;
      EXPECT_TRUE(same(got.saved_values, saved_tensor(t.saved, x, want)));
      EXPECT_TRUE(same(got.branch, statistics.branch));
      EXPECT_TRUE(same(got.inv_std, statistics.inv_std));
      if (t.saved == Saved::kInput) {
        EXPECT_TRUE(same(got.mean, statistics.mean));
      }
      EXPECT_TRUE(same(got.channel_values, invertibility::reveal(statistics.channel_values)));
      EXPECT_TRUE(same(got.channel_index, invertibility::reveal(statistics.channel_index)));
      EXPECT_TRUE(same_memory(ctx->get_saved_variables()[kSavedTensors], more)) << "the tensor behind them";
    });
  }
}

// Branch bits and saved channels are in the memory order of the saved tensor, which a hook on saved tensors
// may change.
TEST(AbnSavedArguments, TheSavedTensorHasTheMemoryOrderOfItsBits) {
  const at::Tensor x = image().contiguous(at::MemoryFormat::ChannelsLast).set_requires_grad(true);
  for (const Saved saved : {Saved::kOutputBit, Saved::kOutput, Saved::kPreActivation}) {
    for (const bool invertible : {false, true}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(saved)) + (invertible ? ", invertible" : ""));
      ForwardArguments a = with_own_statistics(layers()[0].second);
      a.settings.saved = saved;
      a.settings.activation = saved == Saved::kOutputBit ? Activation::kGELU : Activation::kLeakyReLU;
      if (invertible) a.settings.weight = torch::ones(kChannels), a.settings.bias = torch::zeros(kChannels);
      in_backward(x, a, image(), [&](AutogradContext* ctx) {
        variable_list copied = ctx->get_saved_variables();
        copied[0] = copied[0].clone(at::MemoryFormat::Contiguous);
        const at::Tensor got = saved_arguments(ctx, copied).saved_values;
        const bool in_order = saved == Saved::kOutputBit || !invertible;  // with bits or channels
        EXPECT_EQ(got.is_contiguous(at::MemoryFormat::ChannelsLast), in_order);
        EXPECT_TRUE(at::equal(got, copied[0]));
      });
    }
  }
}

TEST(AbnGradientSlots, NumberTheInputsThatArePresentAndRequireAGradient) {
  // Bits: weight, bias and residual are present; x, weight, bias, residual and the last input require one.
  for (int present = 0; present < 8; ++present) {
    for (int required = 1; required < 32; ++required) {
      SCOPED_TRACE("present " + std::to_string(present) + ", required " + std::to_string(required));
      const auto has = [&](int bit) { return (present >> bit & 1) != 0; };
      const auto needs = [&](int bit) { return (required >> bit & 1) != 0; };
      const at::Tensor x = image().set_requires_grad(needs(0)), last = image().set_requires_grad(needs(4));
      ForwardArguments a;
      if (has(0)) a.settings.weight = (torch::rand(kChannels) + 1).set_requires_grad(needs(1));
      if (has(1)) a.settings.bias = torch::rand(kChannels).set_requires_grad(needs(2));
      if (has(2)) a.settings.residual = image().set_requires_grad(needs(3));
      const bool dx = needs(0), dweight = has(0) && needs(1), dbias = has(1) && needs(2),
                 dresidual = has(2) && needs(3);
      if (!(dx || dweight || dbias || dresidual || needs(4))) continue;
      in_backward(x, a, last, [&](AutogradContext* ctx) {
        BackwardArguments arguments = saved_arguments(ctx);
        // The parameters' dtypes are those that were saved: as if they had been given in 16 bits.
        if (has(0)) arguments.settings.weight = arguments.settings.weight->detach().to(at::kHalf);
        if (has(1)) arguments.settings.bias = arguments.settings.bias->detach().to(at::kBFloat16);
        arguments.need_z = true;
        const GradientSlots slots(ctx, arguments, /*first_slot=*/0);
        EXPECT_EQ(arguments.need_dx, dx);
        EXPECT_EQ(arguments.need_sums, dweight || dbias);
        EXPECT_EQ(arguments.need_dresidual, dresidual);
        EXPECT_TRUE(arguments.need_z) << "left to the caller";
        ASSERT_EQ(slots.next(), 1 + has(0) + has(1) + has(2));
        EXPECT_EQ(ctx->needs_input_grad(slots.next()), needs(4));

        const Gradients gradients{image(), vector(), vector(), image(), {}};
        const at::Tensor rest = image();
        const variable_list got = slots.in_order(gradients, {at::Tensor(), rest});
        ASSERT_EQ(got.size(), 6);
        EXPECT_TRUE(got[0].is_same(gradients.dx));
        EXPECT_TRUE(same(got[1], dweight ? gradients.dweight.to(at::kHalf) : at::Tensor()));
        EXPECT_TRUE(same(got[2], dbias ? gradients.dbias.to(at::kBFloat16) : at::Tensor()));
        EXPECT_TRUE(got[3].is_same(gradients.dresidual));
        EXPECT_FALSE(got[4].defined());
        EXPECT_TRUE(got[5].is_same(rest));
      });
    }
  }
}

}  // namespace
}  // namespace palimpsest::ops::abn_detail
