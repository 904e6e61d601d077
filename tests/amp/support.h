#pragma once

#include "palimpsest/amp/autocast_guard.h"

#include <ATen/record_function.h>
#include <torch/torch.h>

#include <atomic>
#include <string>
#include <vector>

namespace palimpsest::amp::testing {

/// Counts the calls of one of libtorch's operators ("aten::_to_copy", for example) on all threads until the
/// end of the scope.
class CallCounter {
 public:
  explicit CallCounter(std::string name) {
    wanted() = std::move(name);
    count() = 0;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
          if (wanted() == f.name()) ++count();
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CallCounter() { at::removeCallback(handle_); }
  CallCounter(const CallCounter&) = delete;
  CallCounter& operator=(const CallCounter&) = delete;

  int calls() const { return count(); }

 private:
  static std::string& wanted() {
    static std::string name;
    return name;
  }
  static std::atomic<int>& count() {
    static std::atomic<int> calls;
    return calls;
  }

  at::CallbackHandle handle_;
};

inline constexpr AutocastOptions kUncached{.cache = false};

/// A user's own network, of libtorch's layers only.
struct UsersNetImpl : torch::nn::Module {
  UsersNetImpl()
      : conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3).padding(1)))),
        bn(register_module("bn", torch::nn::BatchNorm2d(64))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(64, 128, 1).bias(false)))),
        fc1(register_module("fc1", torch::nn::Linear(128, 64))),
        fc2(register_module("fc2", torch::nn::Linear(torch::nn::LinearOptions(64, 5).bias(false)))) {}

  at::Tensor forward(const at::Tensor& x) {
    const auto h = conv2(bn(conv1(x)).relu_()).mean({2, 3});
    if (!twice) return fc2(fc1(h).relu());
    // Twice the same layer, and at::linear, whose cast comes before the transposition.
    return fc2(fc1(h).relu()) + at::linear(fc1(h), fc2->weight);
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn;
  torch::nn::Conv2d conv2;
  torch::nn::Linear fc1, fc2;
  bool twice = true;
};
TORCH_MODULE(UsersNet);

inline at::Tensor images() {
  torch::manual_seed(2);
  return torch::randn({4, 3, 6, 6});
}

inline at::Tensor loss_of(UsersNet& net, at::ScalarType type, const AutocastOptions& options = kUncached) {
  const AutocastGuard guard(at::kCPU, type, options);
  return torch::cross_entropy_loss(net(images()).to(at::kFloat), torch::tensor({0, 1, 2, 3}));
}

inline std::vector<at::Tensor> gradients_of(UsersNet& net) {
  std::vector<at::Tensor> gradients;
  for (const auto& p : net->parameters()) gradients.push_back(p.grad().clone());
  net->zero_grad();
  return gradients;
}

}  // namespace palimpsest::amp::testing
