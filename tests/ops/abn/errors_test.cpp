#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/common/layout.h"
#include "tests/ops/abn_case.h"

#include <gtest/gtest.h>

#include <tuple>

namespace palimpsest::ops::tests {
namespace {

const OptionalTensor kNone;

void expect_error(const std::string& message, const std::vector<std::string>& parts) {
  ASSERT_NE(message, "") << "no error was raised";
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
}

/// Both forms refuse these arguments, and leave x as it was.
void expect_refused(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias,
                    const OptionalTensor& mean, const OptionalTensor& var, const AbnOptions& options,
                    const std::vector<std::string>& parts) {
  const at::Tensor before = x.clone();
  expect_error(error_of([&] { abn(x, {weight, bias, mean, var}, options); }), parts);
  expect_error(error_of([&] { abn_(x, {weight, bias, mean, var}, options); }), parts);
  EXPECT_TRUE(x.equal(before));
}

TEST(AbnErrors, XOfTheWrongRankTypeOrSize) {
  const AbnOptions options;
  const auto refuse = [&](const at::Tensor& x, const std::vector<std::string>& parts) {
    expect_refused(x, kNone, kNone, kNone, kNone, options, parts);
  };
  refuse(torch::ones(3), {"[abn] x must have 2 to 5 dimensions", "got shape [3]"});
  refuse(torch::ones({2, 3, 1, 1, 1, 1}), {"2 to 5 dimensions", "[2, 3, 1, 1, 1, 1]"});
  refuse(torch::ones({2, 3, 4}, at::kLong),
         {"[abn] x must be float32, float64, float16 or bfloat16, got int64"});
  refuse(torch::ones({2, 3, 4}, at::kComplexFloat),
         {"float32, float64, float16 or bfloat16", "got complex64"});
  refuse(torch::ones({2, 3, 4}, at::kComplexFloat), {"got complex64"});
  refuse(torch::ones({2, 0, 4}), {"at least one channel", "[2, 0, 4]"});
  refuse(
      torch::ones({1, 3, 1, 1}),
      {"[abn] training needs more than one value per channel, got shape [1, 3, 1, 1]", "training = false"});
  EXPECT_NE(error_of([&] { abn(at::Tensor(), {}); }), "");
  expect_error(error_of([&] { abn(torch::ones({2, 3}).to_sparse(), {}); }), {"dense", "Sparse"});
}

TEST(AbnErrors, ParametersOfTheWrongShapeTypeOrDevice) {
  const at::Tensor x = torch::randn({2, 3, 4, 4}), good = torch::ones(3);
  const AbnOptions options;
  const std::vector<std::string> names{"weight", "bias", "running_mean", "running_var"};
  const std::vector<std::pair<at::Tensor, std::string>> bad{
      {torch::ones(4), "has shape [4]"},
      {torch::ones({3, 1}), "has shape [3, 1]"},
      {torch::ones(3, at::kDouble), "must be float32 where x is float32, got float64"},
      {torch::ones(3, at::kMeta), "must be on the device of x, cpu, got meta"}};
  for (size_t i = 0; i < names.size(); ++i) {
    for (const auto& [tensor, part] : bad) {
      std::vector<OptionalTensor> t{good, good, good, good};
      t[i] = tensor;
      expect_refused(x, t[0], t[1], t[2], t[3], options, {"[abn] " + names[i], part});
    }
  }
  expect_refused(x, kNone, kNone, good, kNone, options, {"go together, got only running_mean"});
  expect_refused(x, kNone, kNone, kNone, good, options, {"go together, got only running_var"});
}

TEST(AbnErrors, NumbersOutOfRange) {
  const at::Tensor x = torch::randn({2, 3, 4, 4});
  const auto refuse = [&](const std::function<void(AbnOptions&)>& set,
                          const std::vector<std::string>& parts) {
    AbnOptions options;
    set(options);
    expect_refused(x, kNone, kNone, kNone, kNone, options, parts);
  };
  refuse([](auto& o) { o.training = false; }, {"running statistics, got none", "training = true"});
  refuse([](auto& o) { o.eps = -1e-5; }, {"eps must be finite and not negative, got -1e-05"});
  refuse([](auto& o) { o.eps = NAN; }, {"eps", "nan"});
  refuse([](auto& o) { o.momentum = 1.5; }, {"momentum", "[0, 1]", "1.5"});
  refuse([](auto& o) { o.momentum = NAN; }, {"momentum", "nan"});
  refuse([](auto& o) { o.activation_param = -0.1; }, {"slope", "got -0.1"});
  refuse([](auto& o) { o.activation_param = 1.1; }, {"slope", "got 1.1"});
  refuse([](auto& o) { o.activation_param = NAN; }, {"slope", "nan"});
  refuse([](auto& o) { o.activation = Activation::kELU, o.activation_param = -1e-3; },
         {"alpha must be finite and not negative", "got -0.001"});
  refuse([](auto& o) { o.activation = Activation::kELU, o.activation_param = INFINITY; }, {"alpha", "inf"});
}

at::Tensor in_place(const at::Tensor& x) {
  return abn_(x, {});
}

TEST(AbnErrors, InPlaceRefusesALeafThatRequiresGradAndItsViews) {
  const at::Tensor leaf = torch::randn({2, 3, 4}).set_requires_grad(true);
  const at::Tensor before = leaf.detach().clone();
  expect_error(error_of([&] { in_place(leaf); }),
               {"[abn_] x must not be a leaf that requires grad", "[2, 3, 4]", "use abn"});
  expect_error(error_of([&] { in_place(leaf.view({2, 3, 2, 2})); }),
               {"view of a leaf", "[2, 3, 2, 2]", "clone"});
  EXPECT_TRUE(leaf.equal(before));
}

TEST(AbnErrors, InPlaceRefusesOneOfSeveralViews) {
  const at::Tensor leaf = torch::randn({4, 4, 3}).set_requires_grad(true);
  const std::vector<std::string> parts{"chunk, split, unbind", "use abn"};
  expect_error(error_of([&] { in_place((leaf + 0).chunk(2, 1)[0]); }), parts);
  expect_error(error_of([&] { in_place((leaf + 0).split(2, 0)[1]); }), parts);
  expect_error(error_of([&] { in_place((leaf + 0).unbind(2)[1]); }), parts);
  // A parameter that wants a gradient is reason enough; without any gradient there is no reason.
  const at::Tensor weight = torch::ones(2).set_requires_grad(true);
  const at::Tensor plain = torch::randn({4, 4, 3});
  expect_error(error_of([&] { abn_(plain.chunk(2, 1)[0], {weight}); }), parts);
  EXPECT_EQ(error_of([&] { in_place(plain.chunk(2, 1)[0]); }), "");
}

TEST(AbnErrors, InPlaceRefusesAViewThatAutogradDidNotSee) {
  const at::Tensor base = torch::randn({4, 4, 3}).set_requires_grad(true) + 0;
  at::Tensor view;
  {
    const torch::NoGradGuard no_grad;
    view = base.view({4, 12});
  }
  const at::Tensor weight = torch::ones(12).set_requires_grad(true);
  expect_error(error_of([&] { abn_(view, {weight}); }), {"made under no_grad"});
}

TEST(AbnErrors, InPlaceRefusesAnInferenceTensorOutsideInferenceMode) {
  at::Tensor x;
  {
    const c10::InferenceMode inference;
    x = torch::randn({4, 4, 3});
    EXPECT_EQ(error_of([&] { in_place(x); }), "");
  }
  const at::Tensor before = x.clone();
  expect_error(error_of([&] { in_place(x); }), {"inference mode", "[4, 4, 3]", "use abn"});
  EXPECT_TRUE(x.equal(before));
  EXPECT_EQ(error_of([&] { abn(x, {}); }), "");
}

TEST(AbnErrors, InPlaceRefusesMemoryThatOverlapsItself) {
  const at::Tensor row = torch::randn({1, 3, 4});
  expect_error(error_of([&] { in_place(row.expand({5, 3, 4})); }),
               {"share memory", "[5, 3, 4]", "[0, 4, 1]", "contiguous"});
  EXPECT_EQ(error_of([&] { abn(row.expand({5, 3, 4}), {}); }), "");
}

TEST(AbnErrors, InPlaceAcceptsAnOrdinaryViewAndUpdatesItsBase) {
  const at::Tensor leaf = torch::randn({4, 6, 5}, at::kDouble).set_requires_grad(true);
  const at::Tensor base = leaf + 0;
  const at::Tensor z = in_place(base.slice(1, 1, 4));
  base.square().sum().backward();

  const at::Tensor twin = leaf.detach().clone().set_requires_grad(true);
  const at::Tensor y = at::batch_norm(twin.slice(1, 1, 4), {}, {}, {}, {}, true, 0.1, 1e-5, false);
  at::cat({twin.slice(1, 0, 1), at::leaky_relu(y, 0.01), twin.slice(1, 4, 6)}, 1).square().sum().backward();
  EXPECT_LE(relative_error(leaf.grad(), twin.grad()), tolerance_across_kinks(at::kDouble));
}

TEST(AbnErrors, AValueThatAnEarlierOperationKeepsIsNoticedAtBackward) {
  const at::Tensor leaf = torch::randn({4, 6, 5}).set_requires_grad(true);
  const at::Tensor z = in_place(leaf.sigmoid());
  expect_error(error_of([&] { z.sum().backward(); }), {"modified by an inplace operation"});
}

TEST(AbnErrors, AWriteToTheOutputIsNoticedAtBackward) {
  for (const bool fresh : {false, true}) {
    const at::Tensor leaf = torch::randn({4, 6, 5}).set_requires_grad(true);
    const at::Tensor z = fresh ? abn(leaf, {}) : in_place(leaf + 0);
    const at::Tensor loss = z.sum();
    z.add_(1);
    expect_error(error_of([&] { loss.backward(); }), {"modified by an inplace operation"});
  }
}

TEST(AbnErrors, WritingWithoutGradientsRaisesTheVersion) {
  const at::Tensor x = torch::randn({4, 6, 5});
  const torch::NoGradGuard no_grad;
  const auto version = x._version();
  in_place(x);
  EXPECT_GT(x._version(), version);
}

TEST(AbnErrors, ASecondDerivativeIsRefused) {
  for (const bool fresh : {false, true}) {
    const at::Tensor leaf = torch::randn({4, 6, 5}).set_requires_grad(true);
    const at::Tensor z = fresh ? abn(leaf, {}) : in_place(leaf + 0);
    expect_error(
        error_of([&] { torch::autograd::grad({z.square().sum()}, {leaf}, {}, true, /*create_graph=*/true); }),
        {"[abn] the operator has no double backward", "create_graph"});
  }
}

TEST(AbnErrors, ConsumingRefusesTensorsInTheMemoryOfX) {
  for (const Saved saved : {Saved::kOutput, Saved::kPreActivation, Saved::kNormalized}) {
    const at::Tensor x = torch::randn({4, 4, 3, 3});
    expect_error(error_of([&] { abn_(x, {}, options_with(saved), x.detach()); }),
                 {"residual must not share memory with x", "use abn"});
    const at::Tensor weight = x.view(-1).narrow(0, 0, 16).view({4, 4, 1, 1});
    expect_error(
        error_of([&] { abn_conv_(x, {}, weight, {}, {{1, 1}, {0, 0}, {1, 1}, 1}, options_with(saved)); }),
        {"conv_weight must not share memory with x"});
  }
}

TEST(AbnErrors, TensorsShareMemoryIfAnElementOfOneIsAnElementOfTheOther) {
  torch::manual_seed(0);
  const at::Tensor base = torch::arange(400);
  for (int i = 0; i < 300; ++i) {  // equal strides: the answer is exact
    const auto n = [&](int64_t most) { return torch::randint(1, most + 1, {1}).item<int64_t>(); };
    const std::vector<int64_t> sizes{n(4), n(3), n(4)};
    const int64_t inner = n(2), middle = sizes[2] * inner + n(2) - 1, outer = sizes[1] * middle + n(3) - 1;
    const std::vector<int64_t> strides{outer, middle, inner};
    const at::Tensor a = base.as_strided(sizes, strides, n(40)), b = base.as_strided(sizes, strides, n(40));
    EXPECT_EQ(may_share_memory(a, b), torch::isin(a.contiguous(), b.contiguous()).any().item<bool>())
        << a << b;
  }
  EXPECT_FALSE(may_share_memory(base, base.clone()));
  EXPECT_FALSE(may_share_memory(base.narrow(0, 0, 0), base));
  EXPECT_TRUE(may_share_memory(base, torch::from_blob(base.data_ptr(), {400}, at::kLong)));
  EXPECT_TRUE(may_share_memory(base.view(at::kInt), base));
}

TEST(AbnSlopes, TheDtypeDecidesWhichSlopesTheOutputShows) {
  const auto saved = [](Activation activation, double param, at::ScalarType dtype) {
    AbnOptions options;
    options.activation = activation;
    options.activation_param = param;
    return saved_for(options, dtype);
  };
  for (const Activation activation : {Activation::kLeakyReLU, Activation::kELU})
    for (const auto& [dtype, lost, shown] : {std::tuple{at::kHalf, 4.7e-7, 4.8e-7},
                                             {at::kFloat, 1.4e-33, 1.6e-33},
                                             {at::kDouble, 2e-298, 3e-298},
                                             {at::kBFloat16, 7.8e-31, 7.9e-31}}) {
      EXPECT_EQ(saved(activation, 0, dtype), Saved::kPreActivation);
      EXPECT_EQ(saved(activation, lost, dtype), Saved::kPreActivation);
      EXPECT_EQ(saved(activation, shown, dtype), Saved::kOutput);
    }
  EXPECT_EQ(saved(Activation::kIdentity, 0, at::kHalf), Saved::kOutput);
}

}  // namespace
}  // namespace palimpsest::ops::tests
