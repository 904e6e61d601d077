// Statistics over a process group, on any device: the ranks of a mirror group together have a batch with this
// rank's images several times. (tests/python/test_synchronized.py has ranks that differ.)
#include "palimpsest/ops/abn/functional.h"
#include "palimpsest/ops/abn/native.h"
#include "palimpsest/ops/group_traffic.h"
#include "tests/support/local_group.h"
#include "tests/support/mirror_group.h"
#include "tests/support/relative_error.h"
#include "tests/support/tolerance.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <utility>
#include <vector>

namespace palimpsest::ops {
namespace {

using testing::MirrorGroup;
using testing::relative_error;

constexpr int kRanks = 3;

struct GroupStep {
  at::Tensor z, dx, dweight, dbias, running_mean, running_var;
};

GroupStep step(const at::Tensor& values, const at::Tensor& dz, const NormalizationTensors& given,
               const AbnOptions& options) {
  const auto own = [](const std::optional<at::Tensor>& t, bool grad) {
    return t->detach().clone().set_requires_grad(grad);
  };
  const NormalizationTensors norm{own(given.weight, true), own(given.bias, true),
                                  own(given.running_mean, false), own(given.running_var, false)};
  const at::Tensor x = values.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
  const at::Tensor z = abn(x, norm, options);
  z.backward(dz);
  return {z.detach(),        x.grad(),           norm.weight->grad(),
          norm.bias->grad(), *norm.running_mean, *norm.running_var};
}

void expect_group_equals_the_repeated_batch(at::ScalarType dtype, at::MemoryFormat format, Saved saved,
                                            Activation activation, int64_t channels, double weak_weight) {
  const MirrorGroup group(kRanks);
  torch::manual_seed(1);
  const auto parameters = at::TensorOptions(dtype == at::kDouble ? at::kDouble : at::kFloat);
  const auto image = [&] { return torch::randn({3, channels, 5, 3}).to(dtype).contiguous(format); };
  const at::Tensor x = image() * 2 + 1, dz = image();
  NormalizationTensors norm{torch::rand({channels}, parameters) + 0.5, torch::randn({channels}, parameters),
                            torch::randn({channels}, parameters), torch::rand({channels}, parameters) + 0.5};
  norm.weight->narrow(0, 0, 1).mul_(weak_weight);
  AbnOptions options;
  options.saved = saved;
  options.activation = activation;
  const auto repeated = [](const at::Tensor& t) {
    return at::cat(std::vector<at::Tensor>(kRanks, t)).contiguous(t.suggest_memory_format());
  };
  const GroupStep whole = step(repeated(x), repeated(dz), norm, options);
  options.group = group.name();
  reset_group_traffic();
  const GroupStep own = step(x, dz, norm, options);
  EXPECT_EQ(group_traffic().collectives, 2);
  const double limit = testing::tolerance(dtype).relative_l2;
  EXPECT_LT(relative_error(own.z, whole.z.narrow(0, 0, 3)), limit);
  EXPECT_LT(relative_error(own.dx, whole.dx.narrow(0, 0, 3)), limit);
  EXPECT_LT(relative_error(own.dweight * kRanks, whole.dweight), limit);
  EXPECT_LT(relative_error(own.dbias * kRanks, whole.dbias), limit);
  EXPECT_LT(relative_error(own.running_mean, whole.running_mean), limit);
  EXPECT_LT(relative_error(own.running_var, whole.running_var), limit);
}

TEST(AbnGroup, EqualsTheRepeatedBatch) {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16})
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
      for (const auto& [saved, activation] : {std::pair{Saved::kOutput, Activation::kLeakyReLU},
                                              {Saved::kOutputForm1, Activation::kLeakyReLU},
                                              {Saved::kPreActivation, Activation::kReLU},
                                              {Saved::kNormalized, Activation::kReLU},
                                              {Saved::kInput, Activation::kReLU},
                                              {Saved::kOutputBit, Activation::kSiLU}}) {
        SCOPED_TRACE(c10::str(dtype, ", saved ", static_cast<int>(saved)));
        expect_group_equals_the_repeated_batch(dtype, format, saved, activation, 7, 1);
      }
}

TEST(AbnGroup, EqualsTheRepeatedBatchWithNonInvertibleChannels) {
  // One of 64 channels is saved on its own; one of 7 makes the layer save x-hat.
  for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
    for (const int64_t channels : {7, 64})
      expect_group_equals_the_repeated_batch(at::kDouble, format, Saved::kOutput, Activation::kLeakyReLU,
                                             channels, 0);
}

TEST(AbnGroup, GoesThroughTheDispatcher) {
  const MirrorGroup group(kRanks);
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({2, 3, 4, 4}, torch::kDouble), dz = torch::randn_like(x);
  abn_detail::ForwardArguments a;
  a.for_backward = true;
  a.settings.activation_param = 0.01;
  a.group = group.name();
  const auto got = abn_detail::forward(x, a), want = abn_detail::native::forward(x, a);
  ASSERT_TRUE(got.statistics.count.defined());
  EXPECT_EQ(got.statistics.count.item<double>(), 2 * 16 * kRanks);
  EXPECT_TRUE(at::equal(got.z, want.z));
  abn_detail::BackwardArguments b;
  b.settings = a.settings;
  b.saved_values = got.z;
  b.channel_values = got.statistics.channel_values;
  b.channel_index = got.statistics.channel_index;
  b.mean = got.statistics.mean;
  b.inv_std = got.statistics.inv_std;
  b.group = a.group;
  b.count = got.statistics.count;
  const auto gradients = abn_detail::backward(dz, b);
  EXPECT_TRUE(at::equal(gradients.dx, abn_detail::native::backward(dz, b).dx));
  const at::Tensor over = dz.clone();
  EXPECT_TRUE(at::equal(abn_detail::backward_(over, b).dx, gradients.dx));
  b.count = at::Tensor();
  EXPECT_THROW(abn_detail::backward(dz, b), c10::Error);
}

/// A process group of two whose other rank has `values` zeros per channel.
class GroupBesideZeros : public testing::LocalGroup {
 public:
  explicit GroupBesideZeros(double values)
      : LocalGroup("beside_zeros", c10::make_intrusive<BesideZeros>(values)) {}

 private:
  class BesideZeros : public testing::LocalBackend {
   public:
    explicit BesideZeros(double values) : testing::LocalBackend(0, 2), values_(values) {}

   private:
    std::vector<at::Tensor> exchange(const at::Tensor& mine) override {
      at::Tensor other = at::zeros_like(mine);  // means, variances, their number
      other[-1] = values_;
      return {mine.clone(), other};
    }
    double values_;
  };
};

TEST(AbnGroup, OneValueInAllRanksIsAnError) {
  for (const auto& [own, other] : {std::pair{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}, {0, 2}}) {
    SCOPED_TRACE(c10::str(own, " values, and ", other, " on the other rank"));
    const GroupBesideZeros group(other);
    AbnOptions options;
    options.group = group.name();
    if (own + other == 1)
      EXPECT_THROW(abn(torch::ones({own, 3}), {}, options), c10::ValueError);
    else
      EXPECT_NO_THROW(abn(torch::ones({own, 3}), {}, options));
  }
}

}  // namespace
}  // namespace palimpsest::ops
