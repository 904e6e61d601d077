#include "palimpsest/train/ema.h"

#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace palimpsest::train {
namespace {

using namespace testing;

/// Changes all parameters and statistics, as a training step does.
void shift(torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : nn::state_dict(module)) {
    if (tensor.is_floating_point()) {
      tensor.add_(at::randn_like(tensor));
    } else {
      tensor.add_(1);
    }
  }
}

TEST(Average, FollowsTheFormulaForParametersAndRunningStatistics) {
  const auto model = make_tiny(1);
  model->to(at::kDouble);
  Average average(*model, 0.4);
  std::map<std::string, at::Tensor> want;
  for (const auto& [name, tensor] : nn::state_dict(*model))
    if (tensor.is_floating_point()) want[name] = tensor.detach().clone();
  EXPECT_TRUE(want.contains("bn1.running_var"));
  for (int64_t step = 1; step <= 9; ++step) {  // the rule of the first steps ends at step 5
    shift(*model);
    average.update(step);
    const double s = static_cast<double>(step), decay = std::min(0.4, (1 + s) / (10 + s));
    for (const auto& [name, tensor] : nn::state_dict(*model))
      if (want.contains(name)) want[name] = decay * want[name] + (1 - decay) * tensor.detach();
  }
  ASSERT_EQ(average.tensors().size(), want.size());
  for (const auto& [name, tensor] : average.tensors())
    EXPECT_LE(relative_error(tensor, want.at(name)), kReorderedF64) << name;
}

TEST(Average, IsInTheModelDuringAnExchangeAndBothHaveTheirBitsAfterwards) {
  const auto model = make_tiny(1);
  Average average(*model, 0.9);
  shift(*model);
  average.update(20);
  std::vector<at::Tensor> trained, averaged;
  for (const auto& [name, tensor] : nn::state_dict(*model)) trained.push_back(tensor.detach().clone());
  for (const auto& [name, tensor] : average.tensors()) averaged.push_back(tensor.clone());
  {
    const Average::Exchange exchange(average);
    std::vector<at::Tensor> now;
    for (const auto& [name, tensor] : nn::state_dict(*model))
      if (tensor.is_floating_point()) now.push_back(tensor.detach());
    expect_equal(now, averaged);
    EXPECT_EQ(model->bn1->num_batches_tracked.item<int64_t>(), 1) << "counters are those of the training";
  }
  std::vector<at::Tensor> now, averages_now;
  for (const auto& [name, tensor] : nn::state_dict(*model)) now.push_back(tensor.detach());
  for (const auto& [name, tensor] : average.tensors()) averages_now.push_back(tensor);
  expect_equal(now, trained);
  expect_equal(averages_now, averaged);
}

TEST(Average, ADecayOutOfRangeIsAnError) {
  const auto model = make_tiny(1);
  for (const double decay : {0.0, 1.0, -0.5})
    expect_error(ErrorKind::kUsage, {"decay", "(0, 1)"}, [&] { Average(*model, decay); });
  EXPECT_NO_THROW(check_ema_decay(0));
  expect_error(ErrorKind::kUsage, {"ema_decay", "1.5"}, [] { check_ema_decay(1.5); });
}

}  // namespace
}  // namespace palimpsest::train
