// Convolutions of which some passes are ours against libtorch's in f64.
#include "palimpsest/ops/convolution.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/ops/abn_conv.h"
#include "palimpsest/ops/concat_abn_conv.h"
#include "palimpsest/ops/convolution/functional.h"
#include "palimpsest/ops/dense_block.h"
#include "tests/ops/abn_case.h"
#include "tests/support/operator_calls.h"
#include "tests/support/tolerance.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace palimpsest::ops::tests {
namespace {

struct ConvolveCase {
  int64_t c_in, c_out, kernel;
  ConvolutionOptions options;
  bool own;  // whether a pass of ours runs in f32, channels-last
  int64_t images = 2;
};

const ConvolveCase kConvolveCases[] = {
    {64, 48, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, true},    {64, 64, 1, {{2, 1}, {0, 0}, {1, 1}, 1}, true},
    {64, 32, 1, {{1, 1}, {1, 1}, {1, 1}, 1}, true},    {16, 48, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, false},
    {32, 16, 3, {{2, 2}, {1, 1}, {1, 1}, 1}, true},    {32, 48, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, false},
    {32, 32, 5, {{1, 1}, {2, 2}, {1, 1}, 32}, true},   {64, 64, 3, {{1, 1}, {1, 1}, {1, 1}, 2}, false},
    {3, 16, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, false},    {32, 32, 3, {{1, 1}, {1, 1}, {1, 1}, 8}, true},
    {64, 64, 3, {{2, 2}, {1, 1}, {1, 1}, 4}, true},    {40, 32, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, true, 8},
    {48, 60, 3, {{1, 1}, {3, 2}, {2, 1}, 2}, true, 8},
};

struct ConvolveTensors {
  at::Tensor x, weight;
  OptionalTensor bias;
};

ConvolveTensors tensors_of(const ConvolveCase& c, at::ScalarType dtype, bool channels_last, bool with_bias,
                           int64_t images = 2) {
  torch::manual_seed(5);
  const auto make = [&](at::IntArrayRef sizes) {
    at::Tensor t = torch::randn(sizes, at::kFloat).to(dtype);
    if (channels_last && sizes.size() == 4) t = t.contiguous(at::MemoryFormat::ChannelsLast);
    return t.set_requires_grad(true);
  };
  ConvolveTensors t{
      make({images, c.c_in, 11, 10}), make({c.c_out, c.c_in / c.options.groups, c.kernel, c.kernel}), {}};
  if (with_bias) t.bias = make({c.c_out});
  return t;
}

at::Tensor libtorchs(const ConvolveTensors& t, const ConvolutionOptions& o) {
  return at::conv2d(t.x, t.weight, t.bias, o.stride, o.padding, o.dilation, o.groups);
}

/// `rounded`: a type that holds the gradient of out.
std::vector<at::Tensor> with_gradients(const at::Tensor& out, const ConvolveTensors& t,
                                       at::ScalarType rounded = at::kFloat) {
  torch::manual_seed(6);
  std::vector<at::Tensor> wanted{t.x, t.weight};
  if (t.bias) wanted.push_back(*t.bias);
  auto all = torch::autograd::grad({out}, wanted,
                                   {torch::randn(out.sizes(), at::kFloat).to(rounded).to(out.dtype())});
  all.push_back(out.detach());
  return all;
}

TEST(Convolution, HasTheResultsOfLibtorch) {
  for (const ConvolveCase& c : kConvolveCases)
    for (const auto dtype : {at::kFloat, at::kDouble})
      for (const bool channels_last : {true, false})
        for (const bool with_bias : {false, true}) {
          SCOPED_TRACE(c10::str(c.c_in, " to ", c.c_out, " in ", c.options.groups, " groups, ", dtype,
                                channels_last ? ", channels-last" : "", with_bias ? ", bias" : ""));
          const ConvolveTensors t = tensors_of(c, dtype, channels_last, with_bias, c.images);
          EXPECT_EQ(convolution_detail::has_own_pass(t.x, t.weight, c.options),
                    c.own && channels_last && dtype == at::kFloat);
          const auto got = with_gradients(convolution(t.x, t.weight, t.bias, c.options), t);
          const ConvolveTensors exact = tensors_of(c, at::kDouble, channels_last, with_bias, c.images);
          const auto want = with_gradients(libtorchs(exact, c.options), exact);
          ASSERT_EQ(got.size(), want.size());
          for (size_t i = 0; i < got.size(); ++i) {
            EXPECT_LE(relative_error(got[i], want[i]), tolerance_across_kinks(dtype)) << "result " << i;
            EXPECT_EQ(got[i].sizes(), want[i].sizes());
          }
          EXPECT_EQ(got.back().strides(), libtorchs(t, c.options).strides());
        }
}

/// Libtorch without oneDNN for as long as it lives, as on a processor that oneDNN has no 16-bit kernels for.
class WithoutOneDnn {
 public:
  WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(false); }
  ~WithoutOneDnn() { at::globalContext().setUserEnabledMkldnn(was_); }
  WithoutOneDnn(const WithoutOneDnn&) = delete;
  WithoutOneDnn& operator=(const WithoutOneDnn&) = delete;

 private:
  bool was_ = at::globalContext().userEnabledMkldnn();
};

at::Tensor under_autocast(const ConvolveTensors& t, const ConvolutionOptions& o) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, t.x.scalar_type());
  const at::Tensor out = convolution(t.x, t.weight, t.bias, o);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  return out;
}

TEST(Convolution, RoundsResultsIn16BitsOnceOnEveryProcessor) {
  for (const ConvolveCase& c : kConvolveCases)
    for (const auto dtype : {at::kHalf, at::kBFloat16})
      for (const bool channels_last : {true, false}) {
        // Many images: libtorch's loops round the weight gradient after each image.
        const ConvolveTensors t = tensors_of(c, dtype, channels_last, true, 16);
        const auto wide = [](const at::Tensor& of) { return of.detach().to(at::kDouble).requires_grad_(); };
        const ConvolveTensors exact{wide(t.x), wide(t.weight), wide(*t.bias)};
        const auto want = with_gradients(libtorchs(exact, c.options), exact, dtype);
        for (const bool onednn : {true, false})
          for (const bool autocast : {true, false}) {
            SCOPED_TRACE(c10::str(c.c_in, " to ", c.c_out, " in ", c.options.groups, " groups, ", dtype,
                                  channels_last ? ", channels-last" : "", onednn ? "" : ", no oneDNN",
                                  autocast ? ", autocast" : ""));
            const auto off = onednn ? nullptr : std::make_unique<WithoutOneDnn>();
            const auto got = with_gradients(
                autocast ? under_autocast(t, c.options) : convolution(t.x, t.weight, t.bias, c.options), t);
            for (size_t i = 0; i < got.size(); ++i) {
              EXPECT_EQ(got[i].scalar_type(), dtype);
              EXPECT_LE(relative_error(got[i], want[i]),
                        testing::kAsNearToTheTruth * relative_error(want[i].to(dtype), want[i]))
                  << "result " << i;
            }
          }
      }
}

/// Whether libtorch was asked for the gradient of a convolution's bias while this is alive. One at a time.
class BiasRequests {
 public:
  BiasRequests() { asked() = false; }
  ~BiasRequests() { at::removeCallback(handle_); }
  BiasRequests(const BiasRequests&) = delete;
  BiasRequests& operator=(const BiasRequests&) = delete;

  bool any() const { return asked(); }

 private:
  static std::atomic<bool>& asked() {
    static std::atomic<bool> value;
    return value;
  }
  static std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& call) {
    if (std::string_view(call.name()) == "aten::convolution_backward" &&
        call.inputs().back().toBoolList().get(2))
      asked() = true;
    return nullptr;
  }

  at::CallbackHandle handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(note).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
};

// oneDNN computes the weight's gradient with that of the bias, so it is not asked for the bias alone. The order of
// libtorch's sum depends on the number of threads for this number of channels.
TEST(Convolution, SumsTheBiasInOneOrderWhereLibtorchDoesNotComputeTheWeightsGradient) {
  const ConvolveCase depthwise{100, 100, 5, {{1, 1}, {2, 2}, {1, 1}, 100}, true};
  const int threads = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const bool needs_weight : {true, false}) {
      ConvolveTensors t = tensors_of(depthwise, dtype, /*channels_last=*/true, /*with_bias=*/true, 8);
      t.weight.set_requires_grad(needs_weight);
      at::Tensor dout, first;
      for (const int n : {1, 2, 3, 5}) {
        at::set_num_threads(n);
        // Without autocast a processor that computes in bf16 takes libtorch's convolution whole.
        const at::Tensor out = dtype != at::kBFloat16 ? convolution(t.x, t.weight, t.bias, depthwise.options)
                                                      : under_autocast(t, depthwise.options);
        if (n == 1) dout = torch::randn_like(out);
        const testing::OperatorCalls calls;
        const BiasRequests requests;
        const at::Tensor bias = torch::autograd::grad({out}, {*t.bias, t.x}, {dout})[0];
        EXPECT_GT(calls.count("aten::convolution_backward"), 0);
        EXPECT_FALSE(requests.any()) << dtype << ", " << n << " threads"
                                     << (needs_weight ? ", a weight that requires a gradient" : "");
        if (n == 1) first = bias;
        EXPECT_TRUE(torch::equal(bias, first)) << dtype << ", " << n << " threads";
      }
      at::set_num_threads(threads);
      EXPECT_EQ(first.scalar_type(), dtype);
      EXPECT_LE(relative_error(first, dout.to(at::kDouble).sum({0, 2, 3})),
                testing::tolerance(dtype).relative_l2);
    }
}

TEST(Convolution, TakesWeightsAndGradientsOfAnyStrides) {
  for (const ConvolveCase& c : kConvolveCases) {
    ConvolveTensors t = tensors_of(c, at::kFloat, true, false, c.images);
    t.weight = t.weight.detach().contiguous().set_requires_grad(true);
    const at::Tensor got = convolution(t.x, t.weight, {}, c.options), want = libtorchs(t, c.options);
    // The gradient of a sum has no strides at all.
    const auto got_gradients = torch::autograd::grad({got.sum()}, {t.x, t.weight});
    const auto want_gradients = torch::autograd::grad({want.sum()}, {t.x, t.weight});
    for (size_t i = 0; i < 2; ++i)
      EXPECT_LE(relative_error(got_gradients[i], want_gradients[i].to(at::kDouble)),
                tolerance_across_kinks(at::kFloat));
  }
}

TEST(Convolution, TakesTensorsThatLibtorchNegatesLater) {
  for (const ConvolveCase& c : kConvolveCases) {
    const ConvolveTensors t = tensors_of(c, at::kFloat, true, false, c.images);
    const at::Tensor out = convolution(t.x, t.weight, {}, c.options);
    const at::Tensor dout = torch::randn_like(out);
    const auto want = torch::autograd::grad({out}, {t.x, t.weight}, {dout.neg()}, /*retain_graph=*/true);
    const auto got = torch::autograd::grad({out}, {t.x, t.weight}, {at::_neg_view(dout)});
    const at::NoGradGuard no_grad;
    const at::Tensor negated = convolution(at::_neg_view(t.x), t.weight, {}, c.options);
    EXPECT_LE(relative_error(negated, libtorchs(t, c.options).neg().to(at::kDouble)),
              tolerance_across_kinks(at::kFloat));
    for (size_t i = 0; i < 2; ++i)
      EXPECT_LE(relative_error(got[i], want[i].to(at::kDouble)), tolerance_across_kinks(at::kFloat));
  }
}

TEST(Convolution, TheBiasOfAnInfiniteGradientIsInfinite) {
  for (const ConvolveCase& c : kConvolveCases)
    for (const bool channels_last : {false, true}) {
      const ConvolveTensors t = tensors_of(c, at::kFloat, channels_last, true, c.images);
      const at::Tensor out = convolution(t.x, t.weight, t.bias, c.options);
      const at::Tensor dout = torch::randn_like(out);
      dout[0][1][0][1] = std::numeric_limits<float>::infinity();
      dout[0][2][3][2] = -std::numeric_limits<float>::infinity();
      dout[1][2][0][0] = std::numeric_limits<float>::infinity();
      const at::Tensor got = torch::autograd::grad({out}, {t.bias.value()}, {dout})[0];
      const at::Tensor want = dout.sum({0, 2, 3}, false, at::kDouble);
      EXPECT_TRUE(got[1].item<double>() == std::numeric_limits<double>::infinity());
      EXPECT_TRUE(got[2].isnan().item<bool>());
      EXPECT_TRUE(got.to(at::kDouble).allclose(want, 1e-4, 1e-3, /*equal_nan=*/true));
    }
}

TEST(Convolution, KeepsItsInputOnly) {
  if (!memory::counting_allocator_installed()) GTEST_SKIP() << "needs the counting allocator";
  for (const ConvolveCase& c : kConvolveCases)
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      const ConvolveTensors t = tensors_of(c, dtype, true, false, c.images);
      memory::Meter meter;
      const at::Tensor out = convolution(t.x, t.weight, {}, c.options);
      meter.forward_done();
      EXPECT_LE(meter.kept_bytes(), static_cast<int64_t>(out.nbytes()) + 4096) << dtype;
    }
}

TEST(Convolution, GivesTheSameGradientsTwice) {
  const ConvolveCase& c = kConvolveCases[0];
  const ConvolveTensors t = tensors_of(c, at::kFloat, true, false);
  const at::Tensor out = convolution(t.x, t.weight, {}, c.options);
  const at::Tensor dout = torch::randn_like(out);
  const auto first = torch::autograd::grad({out}, {t.x, t.weight}, {dout}, /*retain_graph=*/true);
  const auto second = torch::autograd::grad({out}, {t.x, t.weight}, {dout});
  EXPECT_TRUE(first[0].equal(second[0]) && first[1].equal(second[1]));
}

TEST(Convolution, NoticesThatItsInputWasWrittenOver) {
  const ConvolveCase& c = kConvolveCases[0];
  const ConvolveTensors t = tensors_of(c, at::kFloat, true, false);
  at::Tensor x = t.x * 1;
  const at::Tensor out = convolution(x, t.weight, {}, c.options);
  x.add_(1);
  EXPECT_THROW(out.sum().backward(), c10::Error);
}

TEST(Convolution, RefusesASecondDerivative) {
  const ConvolveCase& c = kConvolveCases[0];
  const ConvolveTensors t = tensors_of(c, at::kFloat, true, false);
  const at::Tensor out = convolution(t.x, t.weight, {}, c.options);
  EXPECT_THROW(torch::autograd::grad({out.sum()}, {t.weight}, {}, true, /*create_graph=*/true), c10::Error);
}

TEST(Convolution, RunsInAutocastsType) {
  const ConvolveCase& c = kConvolveCases[0];
  const ConvolveTensors t = tensors_of(c, at::kFloat, true, false);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const at::Tensor out = convolution(t.x, t.weight, {}, c.options);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
}

TEST(Convolution, RefusesWhatDoesNotFit) {
  const at::Tensor x = torch::randn({2, 8, 5, 5}), weight = torch::randn({4, 8, 3, 3});
  const ConvolutionOptions plain{{1, 1}, {0, 0}, {1, 1}, 1};
  EXPECT_THROW(convolution(x, torch::randn({4, 8, 3}), {}, plain), c10::Error);
  EXPECT_THROW(convolution(x, weight, {}, {{1}, {0, 0}, {1, 1}, 1}), c10::Error);
  EXPECT_THROW(convolution(x, weight, {}, {{1, 1}, {0, 0}, {1, 1}, 3}), c10::Error);
  EXPECT_THROW(convolution(x, torch::randn({4, 8, 7, 7}), {}, plain), c10::Error);
  // A bias, also where kernels of ours would run.
  const at::Tensor wide = torch::randn({8, 32, 28, 28}).contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& bias :
       {torch::randn(1), torch::randn(33), torch::randn({32, 1}), torch::randn(32, at::kDouble)})
    EXPECT_THROW(convolution(wide, torch::randn({32, 32, 3, 3}), bias, {{1, 1}, {1, 1}, {1, 1}, 1}),
                 c10::Error)
        << bias.sizes();
}

/// Every call that takes a convolution refuses this geometry before a kernel computes with it.
void expect_refused(const at::Tensor& x, const at::Tensor& weight, const ConvolutionOptions& o,
                    const std::string& part) {
  for (const auto layout : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    const at::Tensor input = x.contiguous(layout), w = weight.contiguous(layout);
    for (const auto& message :
         {error_of([&] { ops::convolution(input, w, {}, o); }),
          error_of([&] { ops::abn_conv(input, {}, w, {}, o, options_with(Saved::kPreActivation)); }),
          error_of([&] { ops::activate_conv(input, w, {}, o, Activation::kReLU, 0); }),
          error_of([&] { ops::concat_abn_conv({input}, NormalizationTensors{}, w, o, {}, false); })})
      EXPECT_NE(message.find(part), std::string::npos) << part << " is not in: " << message;
  }
}

TEST(Convolve, RefusesWhatItsKernelsWouldMiscompute) {
  const at::Tensor x = torch::randn({2, 32, 7, 7});
  const auto weight = [](int64_t out, int64_t in) { return torch::randn({out, in, 3, 3}); };
  const auto refused = [&](const ConvolutionOptions& o, const std::string& part) {
    expect_refused(x, weight(32, 8), o, part);
  };
  expect_refused(x, weight(35, 8), {{1, 1}, {1, 1}, {1, 1}, 4}, "each of its 4 groups");
  refused({{0, 1}, {1, 1}, {1, 1}, 4}, "stride must be 1 to");
  refused({{1, int64_t{1} << 62}, {1, 1}, {1, 1}, 4}, "stride must be 1 to");
  refused({{1, 1}, {-1, 1}, {1, 1}, 4}, "padding must be 0 to");
  refused({{1, 1}, {1, 1}, {0, 1}, 4}, "dilation must be 1 to");
  refused({{1, 1}, {1, 1}, {int64_t{1} << 61, 1}, 4}, "dilation must be 1 to");
  refused({{1, 1}, {1, 1}, {1, 1}, 0}, "groups");
  refused({{1, 1}, {1, 1}, {1, 1}, int64_t{1} << 61}, "groups");
}

TEST(DenseBlockErrors, RefusesAGeometryWhoseSizesOverflow) {
  const at::Tensor x = torch::randn({1, 4, 6, 6});
  DenseLayer layer;
  layer.conv1_weight = torch::randn({8, 4, 1, 1});
  layer.conv2_weight = torch::randn({2, 8, 5, 5});
  layer.conv2 = {{1, 1}, {0, 0}, {int64_t{1} << 62, int64_t{1} << 62}, 1};  // dilation * (5 - 1) wraps to 0
  EXPECT_NE(error_of([&] { dense_block(x, {layer}); }).find("dilation must be 1 to"), std::string::npos);
  layer.conv2 = {{1, 1}, {-2, -2}, {-1, -1}, 1};
  EXPECT_NE(error_of([&] { dense_block(x, {layer}); }).find("padding must be 0 to"), std::string::npos);
}

DenseLayer dense_layer(bool channels_last, at::ScalarType dtype = at::kFloat) {
  torch::manual_seed(4);
  DenseLayer layer;
  layer.conv1_weight = torch::randn({8, 4, 1, 1}, dtype).set_requires_grad(true);
  layer.conv2_weight = torch::randn({6, 8, 3, 3}, dtype);
  if (channels_last) layer.conv2_weight = layer.conv2_weight.contiguous(at::MemoryFormat::ChannelsLast);
  layer.conv2_weight.set_requires_grad(true);
  layer.conv2 = {{1, 1}, {1, 1}, {1, 1}, 1};
  return layer;
}

TEST(DenseBlockDropout, IsDrawnAgainInTheOrderOfMemoryOfForward) {
  std::vector<at::Tensor> results[2];
  for (const bool channels_last : {false, true}) {
    const DenseLayer layer = dense_layer(channels_last);
    const at::Tensor x = torch::randn({2, 4, 5, 7}).set_requires_grad(true);
    torch::manual_seed(9);
    const at::Tensor out = dense_block(x, {layer}, {.dropout = 0.4});
    torch::manual_seed(10);
    results[channels_last] =
        torch::autograd::grad({out}, {x, layer.conv2_weight}, {torch::randn(out.sizes())});
    results[channels_last].push_back(out.detach());
  }
  for (size_t i = 0; i < results[0].size(); ++i)
    EXPECT_LT(relative_error(results[1][i], results[0][i]), 1e-4) << "result " << i;
}

TEST(DenseBlockDropout, AnotherThreadMayDrawFromTheDefaultGenerator) {
  std::atomic<bool> done{false};
  std::thread other([&] {
    while (!done) torch::rand({3});
  });
  const DenseLayer layer = dense_layer(false, at::kDouble);
  int wrong = 0;
  for (int i = 0; i < 300; ++i) {
    const at::Tensor x = torch::randn({2, 4, 3, 3}, at::kDouble).set_requires_grad(true);
    const at::Tensor out = dense_block(x, {layer}, {.dropout = 0.5});
    // The new features are linear in conv2's weight: <out, d out / d weight> gives their sum back.
    const at::Tensor features = out.narrow(1, 4, 6);
    const at::Tensor dw = torch::autograd::grad({features.sum()}, {layer.conv2_weight})[0];
    wrong += relative_error((dw * layer.conv2_weight).sum(), features.sum()) > 1e-6;
  }
  done = true;
  other.join();
  EXPECT_EQ(wrong, 0);
}

TEST(DenseBlock, TakesTensorsThatLibtorchNegatesLater) {
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const at::NoGradGuard no_grad;
    DenseLayer layer = dense_layer(false, dtype);
    layer.norm1.bias = torch::randn({4}, dtype);
    const at::Tensor x = torch::randn({2, 4, 5, 7}, dtype);
    const at::Tensor want = dense_block(x, {layer}, {});
    layer.conv1_weight = at::_neg_view(layer.conv1_weight.neg());
    layer.conv2_weight = at::_neg_view(layer.conv2_weight.neg());
    layer.norm1.bias = at::_neg_view(layer.norm1.bias->neg());
    EXPECT_TRUE(dense_block(at::_neg_view(x.neg()), {layer}, {}).equal(want));
  }
}

TEST(DenseBlock, AnEmptyBatchGivesAnEmptyResultAndZeroGradients) {
  for (const bool pre : {true, false}) {
    const DenseLayer layer = dense_layer(false);
    const at::Tensor x = torch::randn({0, 4, 5, 7}).set_requires_grad(true);
    const at::Tensor out = dense_block(x, {layer}, {.pre_activation = pre});
    EXPECT_EQ(out.sizes(), (std::vector<int64_t>{0, 10, 5, 7}));
    const auto grads = torch::autograd::grad({out.sum()}, {x, layer.conv1_weight, layer.conv2_weight});
    EXPECT_EQ(grads[0].sizes(), x.sizes());
    EXPECT_TRUE(grads[1].equal(torch::zeros_like(grads[1])));
    EXPECT_TRUE(grads[2].equal(torch::zeros_like(grads[2])));
  }
}

}  // namespace
}  // namespace palimpsest::ops::tests
