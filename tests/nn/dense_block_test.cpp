#include "palimpsest/nn/dense_block.h"

#include "palimpsest/amp/autocast_guard.h"
#include "palimpsest/memory/recompute.h"
#include "tests/nn/dense_block_support.h"
#include "tests/support/error_of.h"
#include "tests/support/error_ratios.h"
#include "tests/support/tolerance.h"

#include <functional>
#include <map>
#include <sstream>
#include <thread>

namespace palimpsest::nn {
namespace {

using testing::error_of;

struct DenseCase {
  NormOptions norm;
  bool pre_activation;
  Mode mode;
  bool channels_last;
};

std::ostream& operator<<(std::ostream& out, const DenseCase& c) {
  return out << to_string(c.norm.activation) << " " << to_string(c.norm.strategy)
             << (c.pre_activation ? " pre-" : " post-") << "activation, mode " << static_cast<int>(c.mode)
             << (c.channels_last ? " channels-last" : " NCHW");
}

void expect_equal(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& want, double limit,
                  const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), want[i].defined()) << what << ", result " << i;
    if (!want[i].defined()) continue;
    EXPECT_EQ(got[i].scalar_type(), want[i].scalar_type()) << what << ", result " << i;
    EXPECT_LE(relative_error(got[i], want[i]), limit) << what << ", result " << i;
  }
}

const NormOptions kLeaky{Strategy::kInplace2, Activation::kLeakyReLU, 0.1};
const NormOptions kExactReLU{Strategy::kStoreY, Activation::kReLU};

std::vector<DenseCase> dense_cases() {
  std::vector<DenseCase> cases;
  for (const auto& norm : {kLeaky, kExactReLU})
    for (const bool pre : {true, false})
      for (const Mode mode : {Mode::kTraining, Mode::kEval, Mode::kFrozenNorms})
        for (const bool channels_last : {false, true}) cases.push_back({norm, pre, mode, channels_last});
  for (const auto strategy :
       {Strategy::kCheckpoint, Strategy::kCheckpointNormalized, Strategy::kInplace1, Strategy::kInplaceBit})
    cases.push_back({{strategy, Activation::kLeakyReLU, 0.1}, true, Mode::kTraining, true});
  return cases;
}

TEST(DenseBlock, EveryFormGivesTheSameOutputGradientsAndRunningStatistics) {
  for (const auto dtype : {at::kDouble, at::kFloat})
    for (const DenseCase& c : dense_cases()) {
      std::vector<at::Tensor> want;
      for (const auto form : kDenseForms) {
        auto block = make_block(small_block(form, c.norm, c.pre_activation), dtype);
        set_mode(*block, c.mode);
        auto got = step(block, image(dtype, c.channels_last));
        std::ostringstream what;
        what << to_string(form) << " " << c << " " << dtype;
        EXPECT_EQ(got[0].is_contiguous(at::MemoryFormat::ChannelsLast), c.channels_last) << what.str();
        if (want.empty()) want = got;
        expect_equal(got, want, dtype == at::kDouble ? testing::kReorderedF64 : testing::kReorderedF32,
                     what.str());
      }
    }
}

/// A draw of parameters and image that `rounded` holds. With little of a kink: a value that rounding takes to
/// the other side of it changes the gradient by more than any arithmetic. Even so the gradient of norm1's bias
/// is a sum of which nearly all cancels (dh has none), so that one rounding of dh is 1 % of it in f16.
struct RoundingDraw {
  at::ScalarType rounded;
  bool channels_last;
  uint64_t seed;

  /// By a block whose parameters are of `type`. The image is rounded, for the truth as wide as that.
  std::vector<at::Tensor> step_of(DenseStrategy form, at::ScalarType type) const {
    auto block =
        make_block(small_block(form, {Strategy::kStoreY, Activation::kLeakyReLU, 0.9}), rounded, seed);
    block->to(type);
    const at::Tensor x = image(rounded, channels_last, 2, 5, 6, 7, seed);
    return step(block, type == at::kDouble ? x.to(type) : x);
  }
  std::vector<at::Tensor> truth() const { return step_of(DenseStrategy::kNaive, at::kDouble); }
};

TEST(DenseBlock, SixteenBitsAreAsNearToTheTruthAsTheLayersOfLibtorch) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool channels_last : {false, true}) {
      SCOPED_TRACE(::testing::Message() << dtype << (channels_last ? " channels-last" : " NCHW"));
      testing::ErrorRatios ratios;
      for (int seed = 0; seed < testing::kDraws; ++seed) {
        const RoundingDraw draw{dtype, channels_last, static_cast<uint64_t>(seed)};
        ratios.add(draw.step_of(DenseStrategy::kFused, dtype), draw.step_of(DenseStrategy::kNaive, dtype),
                   draw.truth());
      }
      EXPECT_LE(ratios.mean_ratio(), testing::kAsNearToTheTruth);
      for (std::size_t i = 0; i < ratios.results(); ++i)
        EXPECT_LE(ratios.median_ratio(i), testing::kEachAsNearToTheTruth) << "result " << i;
    }
}

TEST(DenseBlock, UnderAutocastWeightsStayF32AndGradientsAreAsNearToTheTruth) {
  for (const auto dtype : {at::kBFloat16, at::kHalf})
    for (const bool wide : {false, true})
      for (const bool channels_last : {false, true}) {
        std::map<DenseStrategy, testing::ErrorRatios> ratios;
        for (int seed = 0; seed < testing::kFewDraws; ++seed) {
          const RoundingDraw draw{dtype, channels_last, static_cast<uint64_t>(seed)};
          const auto truth = draw.truth();
          const amp::AutocastGuard guard(at::kCPU, dtype, {.cache = false, .compute_in_f32 = wide});
          const auto plain = draw.step_of(DenseStrategy::kCheckpoint, at::kFloat);
          for (const auto form : {DenseStrategy::kNaive, DenseStrategy::kShared, DenseStrategy::kFused}) {
            const auto got = draw.step_of(form, at::kFloat);
            for (std::size_t i = 0; i < truth.size(); ++i) {
              const bool counter = truth[i].scalar_type() == at::kLong;
              EXPECT_EQ(got[i].scalar_type(), i <= 1 ? dtype : counter ? at::kLong : at::kFloat) << i;
            }
            ratios[form].add(got, plain, truth);
          }
        }
        const auto limit = testing::tolerance(dtype).relative_l2;
        for (const auto& [form, of_form] : ratios) {
          SCOPED_TRACE(::testing::Message() << to_string(form) << " " << dtype << (wide ? " wide" : "")
                                            << (channels_last ? " channels-last" : " NCHW"));
          EXPECT_LE(of_form.mean_ratio(), testing::kAsNearToTheTruth);
          for (std::size_t i = 0; i < of_form.results(); ++i)
            EXPECT_LE(of_form.median_error(i), 20 * limit) << "result " << i;
        }
      }
}

TEST(DenseBlock, NumericGradientsOfEveryParameterAndTheInput) {
  for (const bool pre : {true, false}) {
    auto options = small_block(DenseStrategy::kFused, kLeaky, pre);
    options.in_channels(3).layers(2).growth(2).bottleneck(2);
    auto block = make_block(options);
    at::Tensor x = image(at::kDouble, true, 2, 3, 3, 4).requires_grad_();
    torch::manual_seed(7);
    const at::Tensor probe = torch::randn({2, 7, 3, 4}, torch::kFloat64);
    const auto loss = [&] { return (block->forward(x) * probe).sum(); };
    loss().backward();
    auto tensors = block->parameters();
    tensors.push_back(x);
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      torch::NoGradGuard no_grad;
      at::Tensor numeric = torch::empty(tensors[t].sizes(), torch::kFloat64);
      // A copy that is put back: channels-last views flatten only through one.
      const at::Tensor value = tensors[t].detach().clone();
      for (int64_t i = 0; i < value.numel(); ++i) {
        const auto at = [&](double step) {
          at::Tensor moved = value.contiguous().clone();
          moved.view({-1})[i] += step;
          tensors[t].copy_(moved);
          return loss().item<double>();
        };
        numeric.view({-1})[i] =
            (at(testing::kNumericStep) - at(-testing::kNumericStep)) / (2 * testing::kNumericStep);
      }
      tensors[t].copy_(value);
      EXPECT_LE(relative_error(tensors[t].grad(), numeric), testing::kNumericGradient.relative_l2)
          << "tensor " << t << (pre ? ", pre-activation" : ", post-activation");
    }
  }
}

TEST(DenseBlock, DropoutDrawsTheSameMasksAgain) {
  for (const bool pre : {true, false})
    for (const bool channels_last : {false, true}) {
      std::vector<at::Tensor> want;
      at::Tensor state;
      for (const auto form : kDenseForms) {
        auto options = small_block(form, kLeaky, pre);
        options.dropout(0.3);
        auto block = make_block(options);
        const auto got = step(block, image(at::kDouble, channels_last));
        if (want.empty()) want = got;
        expect_equal(got, want, testing::kReorderedF64, to_string(form));
        // Other numbers drawn between forward and backward change nothing.
        const at::Tensor x = image(at::kDouble, channels_last).requires_grad_();
        torch::manual_seed(5);
        const at::Tensor out = block->forward(x);
        torch::manual_seed(7);
        const at::Tensor probe = torch::randn(out.sizes(), torch::kFloat64);
        torch::rand({1000});
        EXPECT_LE(relative_error(torch::autograd::grad({(out * probe).sum()}, {x})[0], want[1]),
                  testing::kReorderedF64);
        block->eval();
        EXPECT_TRUE(torch::equal(block->forward(x), block->forward(x))) << "no mask in eval mode";
      }
    }
}

TEST(DenseBlock, TheLossesOfATrainingAreTheSame) {
  constexpr int kSteps = 100;
  std::vector<double> want;
  for (const auto form : kDenseForms) {
    auto block = make_block(small_block(form, kExactReLU));
    torch::optim::SGD sgd(block->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    std::vector<double> losses;
    torch::manual_seed(2);
    for (int i = 0; i < kSteps; ++i) {
      const at::Tensor x = torch::randn({3, 5, 6, 6}, torch::kFloat64);
      sgd.zero_grad();
      const at::Tensor loss = (block->forward(x).mean(at::IntArrayRef{2, 3}) - 1).square().mean();
      loss.backward();
      sgd.step();
      losses.push_back(loss.item<double>());
    }
    if (want.empty()) want = losses;
    for (int i = 0; i < kSteps; ++i)
      EXPECT_NEAR(losses[i], want[i], testing::kSameTraining * std::abs(want[i]))
          << to_string(form) << ", step " << i;
    EXPECT_LT(losses.back(), losses.front());
  }
}

TEST(DenseBlock, GradientsMayBeExpandedSlicedAccumulatedOrOfViews) {
  using Loss = std::function<at::Tensor(const at::Tensor&)>;
  const std::vector<Loss> losses{
      [](const at::Tensor& out) { return out.sum(); },
      [](const at::Tensor& out) { return out.narrow(1, 4, 6).square().sum(); },
      [](const at::Tensor& out) {
        return (out * out.transpose(2, 3).contiguous().transpose(2, 3)).sum() + out.mean();
      },
  };
  for (const Loss& loss : losses) {
    std::vector<at::Tensor> results[2];
    for (const auto form : {DenseStrategy::kSharedGradient, DenseStrategy::kFused}) {
      auto block = make_block(small_block(form, kLeaky));
      const at::Tensor base = image(at::kDouble, false, 2, 7, 6, 6).requires_grad_();
      // A view with strides that no kernel reads.
      loss(block->forward(base.transpose(2, 3).narrow(1, 1, 5))).backward();
      auto& r = results[form == DenseStrategy::kFused];
      r.push_back(base.grad());
      for (const auto& p : block->parameters()) r.push_back(p.grad());
    }
    expect_equal(results[1], results[0], testing::kReorderedF64, "loss");
  }
}

TEST(DenseBlock, OnlyTheGradientsThatAreAskedForAreComputed) {
  auto block = make_block(small_block(DenseStrategy::kFused, kLeaky));
  const auto all = step(block, image(at::kDouble));
  auto parameters = block->parameters();
  for (std::size_t wanted = 0; wanted < parameters.size(); ++wanted) {
    auto fresh = make_block(small_block(DenseStrategy::kFused, kLeaky));
    auto of_fresh = fresh->parameters();
    for (std::size_t i = 0; i < of_fresh.size(); ++i) of_fresh[i].set_requires_grad(i == wanted);
    const at::Tensor out = fresh->forward(image(at::kDouble));
    torch::manual_seed(7);
    (out * torch::randn(out.sizes(), torch::kFloat64)).sum().backward();
    for (std::size_t i = 0; i < of_fresh.size(); ++i) EXPECT_EQ(of_fresh[i].grad().defined(), i == wanted);
    EXPECT_TRUE(torch::equal(of_fresh[wanted].grad(), all[2 + wanted])) << "parameter " << wanted;
  }
}

TEST(DenseBlock, ARetainedGraphGivesTheSameAgainAndAReleasedOneLibtorchsError) {
  for (const auto form : kDenseForms) {
    auto block = make_block(small_block(form, kLeaky));
    const at::Tensor x = image(at::kDouble).requires_grad_();
    const at::Tensor loss = block->forward(x).square().sum();
    loss.backward({}, /*retain_graph=*/true);
    const at::Tensor once = x.grad().clone();
    loss.backward();
    EXPECT_LE(relative_error(x.grad(), 2 * once), testing::kReorderedF64) << to_string(form);
    const std::string error = error_of([&] { loss.backward(); });
    EXPECT_NE(error.find("second time"), std::string::npos) << to_string(form) << ": " << error;
  }
}

TEST(DenseBlock, NoticesThatItsOutputOrAParameterWasWrittenOver) {
  for (const auto& [form, output] : {std::pair{DenseStrategy::kFused, true},
                                     {DenseStrategy::kFused, false},
                                     {DenseStrategy::kShared, true}}) {
    auto block = make_block(small_block(form, kLeaky));
    at::Tensor out = block->forward(image(at::kDouble).requires_grad_());
    const at::Tensor loss = out.sum();
    {
      torch::NoGradGuard no_grad;
      if (output)
        out.mul_(2);
      else
        block->parameters()[2].mul_(2);
    }
    const std::string error = error_of([&] { loss.backward(); });
    EXPECT_NE(error.find("modified by an inplace operation"), std::string::npos) << error;
  }
}

TEST(DenseBlock, WithinARecomputedSegmentItIsTheSame) {
  for (const auto form : kDenseForms) {
    std::vector<at::Tensor> results[2];
    for (const bool again : {false, true}) {
      auto options = small_block(form, kLeaky);
      options.dropout(0.2);
      auto block = make_block(options);
      const at::Tensor x = image(at::kDouble).requires_grad_();
      torch::manual_seed(5);
      const at::Tensor out = again ? memory::recompute(block, x) : block->forward(x);
      out.square().sum().backward();
      results[again] = {out.detach(), x.grad()};
      for (const auto& p : block->parameters()) results[again].push_back(p.grad());
      for (const auto& b : block->buffers()) results[again].push_back(b);
    }
    for (std::size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(torch::equal(results[1][i], results[0][i])) << to_string(form) << ", result " << i;
  }
}

TEST(DenseBlock, ThreadsHaveTheirOwnBlocksAndShareOne) {
  auto block = make_block(small_block(DenseStrategy::kFused, kLeaky));
  block->eval();  // running statistics are not shared
  const auto run = [&](uint64_t seed) {
    const at::Tensor x = torch::full({2, 5, 6, 7}, static_cast<double>(seed), torch::kFloat64)
                             .mul_(torch::linspace(-1, 1, 7, torch::kFloat64))
                             .requires_grad_();
    return torch::autograd::grad({block->forward(x).square().sum()}, {x})[0];
  };
  std::vector<at::Tensor> want, got(6);
  for (uint64_t i = 0; i < got.size(); ++i) want.push_back(run(i));
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < got.size(); ++i) threads.emplace_back([&, i] { got[i] = run(i); });
  for (auto& thread : threads) thread.join();
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << "thread " << i;
}

TEST(DenseBlock, RefusesWhatItsFormCannotDo) {
  const auto error = [](DenseStrategy form, const NormOptions& norm, auto change) {
    auto options = small_block(form, norm);
    change(options);
    return usage_error([&] { DenseBlock block(options); });
  };
  const auto nothing = [](DenseBlockOptions&) {};
  EXPECT_NE(error(DenseStrategy::kFused, {Strategy::kStandard, Activation::kReLU}, nothing).find("'store_y'"),
            std::string::npos);
  EXPECT_NE(error(DenseStrategy::kFused, {Strategy::kStoreY, Activation::kSiLU}, nothing).find("'silu'"),
            std::string::npos);
  EXPECT_NE(error(DenseStrategy::kShared, {Strategy::kInplace2, Activation::kReLU}, nothing).find("inverted"),
            std::string::npos);
  EXPECT_NE(error(DenseStrategy::kShared, kLeaky, [](auto& o) { o.layers(0); }).find("layers = 0"),
            std::string::npos);
  EXPECT_NE(error(DenseStrategy::kShared, kLeaky, [](auto& o) { o.dropout(1); }).find("dropout"),
            std::string::npos);
  EXPECT_NE(usage_error([] { parse_dense_strategy("fuse"); }).find("'fused'"), std::string::npos);
}

TEST(DenseBlock, RefusesAnotherNumberOfChannelsThanItWasMadeFor) {
  for (const auto form : kDenseForms) {
    auto block = make_block(small_block(form, kLeaky));
    const auto message = usage_error([&] { block->forward(torch::zeros({2, 4, 6, 6}, torch::kFloat64)); });
    EXPECT_NE(message.find("was made for 5 input channels, got 4 in x of shape [2, 4, 6, 6]"),
              std::string::npos)
        << message;
  }
}

TEST(DenseBlock, AnEmptyBatchGivesAnEmptyResultAndGradientsOfZero) {
  for (const auto form : kDenseForms)
    for (const bool training : {true, false}) {
      auto block = make_block(small_block(form, kLeaky));
      block->train(training);
      const at::Tensor x = torch::zeros({0, 5, 6, 6}, torch::kFloat64).requires_grad_();
      const at::Tensor out = block->forward(x);
      EXPECT_EQ(out.sizes(), at::IntArrayRef({0, 17, 6, 6})) << to_string(form);
      out.sum().backward();
      for (const auto& p : block->parameters()) EXPECT_EQ(p.grad().abs().sum().item<double>(), 0);
    }
}

TEST(DenseBlock, AnswersAWrongInputInOneLine) {
  auto block = make_block(small_block(DenseStrategy::kFused, kLeaky));
  const auto message = [&](const at::Tensor& x) { return error_of([&] { block->forward(x); }); };
  EXPECT_NE(message(torch::zeros({2, 5, 6}, torch::kFloat64)).find("must be (N, C, H, W)"),
            std::string::npos);
  EXPECT_NE(message(torch::zeros({2, 5, 6, 6})).find("dtype and device of x"), std::string::npos);
  EXPECT_NE(message(torch::zeros({1, 5, 1, 1}, torch::kFloat64)).find("more than one value per channel"),
            std::string::npos);
  EXPECT_NE(message(torch::zeros({2, 5, 6, 6}, at::TensorOptions().device(at::kMeta).dtype(at::kDouble)))
                .find("for CPU and CUDA"),
            std::string::npos);
}

TEST(DenseBlock, ANormalizationSwitchedToStandardIsComputedByLibtorchsLayer) {
  for (const DenseStrategy strategy : {DenseStrategy::kFused, DenseStrategy::kShared})
    for (const bool first : {true, false}) {
      auto block = make_block(small_block(strategy, kLeaky));
      const at::Tensor x = leaf({2, 5, 6, 6});
      const auto gradient = [&] { return torch::autograd::grad({block->forward(x).sin().sum()}, {x})[0]; };
      const at::Tensor want = block->forward(x).detach().clone(), want_gradient = gradient();
      auto layer = std::dynamic_pointer_cast<DenseLayerImpl>(block->named_children()["denselayer2"]);
      ASSERT_TRUE(layer);
      (first ? layer->norm1 : layer->norm2)->options.strategy(Strategy::kStandard);
      EXPECT_LE(relative_error(block->forward(x), want), testing::kReorderedF64)
          << to_string(strategy) << first;
      EXPECT_LE(relative_error(gradient(), want_gradient), testing::kReorderedF64)
          << to_string(strategy) << first;
    }
}

}  // namespace
}  // namespace palimpsest::nn
