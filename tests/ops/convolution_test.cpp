// Convolutions of which some passes are ours against libtorch's in f64.
#include "palimpsest/ops/convolution.h"
#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/meter.h"
#include "palimpsest/ops/convolution/functional.h"
#include "tests/ops/abn_case.h"
#include "tests/support/tolerance.h"

#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <memory>

namespace palimpsest::ops::tests {
namespace {

struct ConvolveCase {
  int64_t c_in, c_out, kernel;
  ConvolutionOptions options;
  bool own;  // whether a pass of ours runs in f32, channels-last
};

const ConvolveCase kConvolveCases[] = {
    {32, 48, 1, {{1, 1}, {0, 0}, {1, 1}, 1}, true},  {32, 16, 3, {{2, 2}, {1, 1}, {1, 1}, 1}, true},
    {64, 64, 3, {{1, 1}, {1, 1}, {1, 1}, 2}, false}, {3, 16, 3, {{1, 1}, {1, 1}, {1, 1}, 1}, false},
    {32, 32, 3, {{1, 1}, {1, 1}, {1, 1}, 8}, true},  {64, 64, 3, {{2, 2}, {1, 1}, {1, 1}, 4}, true},
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
          const ConvolveTensors t = tensors_of(c, dtype, channels_last, with_bias);
          EXPECT_EQ(convolution_detail::has_own_pass(t.x, t.weight, c.options),
                    c.own && channels_last && dtype == at::kFloat);
          const auto got = with_gradients(convolution(t.x, t.weight, t.bias, c.options), t);
          const ConvolveTensors exact = tensors_of(c, at::kDouble, channels_last, with_bias);
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

TEST(Convolution, TakesWeightsAndGradientsOfAnyStrides) {
  for (const ConvolveCase& c : kConvolveCases) {
    ConvolveTensors t = tensors_of(c, at::kFloat, true, false);
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

TEST(Convolution, KeepsItsInputOnly) {
  if (!memory::counting_allocator_installed()) GTEST_SKIP() << "needs the counting allocator";
  for (const ConvolveCase& c : kConvolveCases)
    for (const auto dtype : {at::kFloat, at::kHalf}) {
      const ConvolveTensors t = tensors_of(c, dtype, true, false);
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
}

}  // namespace
}  // namespace palimpsest::ops::tests
