#include "palimpsest/ops/feature_slots.h"

#include "palimpsest/memory/counting_allocator.h"
#include "palimpsest/memory/recompute/saved_tensor_hooks.h"
#include "tests/support/error_of.h"
#include "tests/support/relative_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::ops::feature_slots_tests {
namespace {

using testing::error_of;
using testing::relative_error;
using Tensors = std::vector<at::Tensor>;

at::Tensor image(int64_t channels, bool channels_last = false) {
  return torch::randn({2, channels, 4, 5}, at::kDouble)
      .contiguous(channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
}

/// A feature of two channels that reads, and saves, all features so far.
at::Tensor next_feature(at::TensorList features) {
  at::Tensor sum = torch::zeros({2, 2, 4, 5}, at::kDouble);
  for (const at::Tensor& f : features) sum = sum + f.square().narrow(1, f.size(1) - 2, 2);
  return sum;
}

TEST(FeatureSlots, AreTheConcatenationWithItsGradients) {
  for (const bool channels_last : {false, true}) {
    torch::manual_seed(2);
    const at::Tensor x = image(3, channels_last), probe = image(9);
    const auto run = [&](const std::function<at::Tensor(const at::Tensor&)>& block) {
      const at::Tensor leaf = x.clone().set_requires_grad(true);
      const at::Tensor all = block(leaf);
      (all * probe).sum().backward();
      return Tensors{all.detach(), leaf.grad()};
    };
    const Tensors want = run([](const at::Tensor& leaf) {
      Tensors features{leaf};
      for (int i = 0; i < 3; ++i) features.push_back(next_feature(features));
      return torch::cat(features, 1);
    });
    const Tensors got = run([&](const at::Tensor& leaf) {
      FeatureSlots slots(leaf, 9);
      for (int i = 0; i < 3; ++i) slots.put(next_feature(slots.features()));
      const at::Tensor all = slots.result();
      EXPECT_EQ(all.strides(), image(9, channels_last).strides());
      int64_t channel = 0;
      for (const at::Tensor& f : slots.features()) {
        EXPECT_EQ(f.const_data_ptr(), all.select(1, channel).const_data_ptr()) << "in the same memory";
        channel += f.size(1);
      }
      return all;
    });
    EXPECT_TRUE(got[0].equal(want[0]));
    EXPECT_LE(relative_error(got[1], want[1]), testing::kReorderedF64);
  }
}

TEST(FeatureSlots, TakeTheMemoryOfTheResultAlone) {
  const auto live = [] { return memory::memory_stats().current_bytes; };
  const at::Tensor x = image(3).set_requires_grad(true);
  const int64_t before = live();
  FeatureSlots slots(x, 7);
  for (int i = 0; i < 2; ++i) slots.put((slots.features().back() * 2).narrow(1, 0, 2));
  const at::Tensor all = slots.result();
  EXPECT_EQ(live() - before, static_cast<int64_t>(all.nbytes()));
}

/// Counts the values that autograd's hooks get, as save_on_cpu would copy them.
class CountingSink : public memory::SavedTensorSink {
 public:
  class Hooks : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hooks(CountingSink& sink) : sink_(&sink) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      ++sink_->tensors;
      sink_->values += tensor.numel();
      tensor_ = tensor.detach();
    }
    at::Tensor call_unpack_hook() override { return tensor_; }

   private:
    CountingSink* sink_;
    at::Tensor tensor_;
  };
  std::unique_ptr<torch::autograd::SavedVariableHooks> next() override {
    return std::make_unique<Hooks>(*this);
  }

  int64_t tensors = 0, values = 0;
};

TEST(FeatureSlots, GiveHooksNoValuesToCopy) {
  const at::Tensor x = image(3).set_requires_grad(true);
  FeatureSlots slots(x, 5);
  slots.put(next_feature(slots.features()));
  CountingSink sink;
  at::Tensor all;
  {
    const memory::SavedTensorSinkGuard guard(sink);
    all = slots.result();
  }
  EXPECT_EQ(sink.tensors, 1);
  EXPECT_EQ(sink.values, 0);
  all.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(FeatureSlots, AResultThatWasWrittenOverIsNoticedAtBackward) {
  const at::Tensor x = image(3).set_requires_grad(true);
  FeatureSlots slots(x, 5);
  slots.put(next_feature(slots.features()));
  at::Tensor all = slots.result();
  const at::Tensor loss = all.sum();
  {
    const at::NoGradGuard no_grad;
    all.mul_(2);
  }
  EXPECT_NE(error_of([&] { loss.backward(); }).find("modified by an inplace operation"), std::string::npos);
}

TEST(FeatureSlots, AFeatureThatDoesNotFitIsRefused) {
  FeatureSlots slots(image(3), 5);
  const auto refuses = [&](const at::Tensor& feature) {
    const std::string error = error_of([&] { slots.put(feature); });
    return error.find("[feature_slots] a feature must fit behind the 3 channels") != std::string::npos;
  };
  EXPECT_TRUE(refuses(image(3)));
  EXPECT_TRUE(refuses(image(2).to(at::kFloat)));
  EXPECT_TRUE(refuses(image(2).flatten(2)));
  EXPECT_EQ(slots.features().size(), 1);
  slots.put(image(2));
  EXPECT_EQ(slots.features().size(), 2);
}

}  // namespace
}  // namespace palimpsest::ops::feature_slots_tests
