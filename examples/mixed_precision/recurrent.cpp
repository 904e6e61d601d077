#include "examples/mixed_precision/recurrent.h"

#include <palimpsest/palimpsest.h>
#include <torch/torch.h>

#include <vector>

namespace mixed_precision {

using palimpsest::nn::Linear;

LstmImpl::LstmImpl(int64_t inputs, int64_t hidden, int64_t projection) : hidden_(hidden) {
  const int64_t outputs = projection > 0 ? projection : hidden;
  input_ = register_module("input", Linear(inputs, 4 * hidden));
  recurrent_ =
      register_module("recurrent", Linear(torch::nn::LinearOptions(outputs, 4 * hidden).bias(false)));
  if (projection > 0)
    projection_ =
        register_module("projection", Linear(torch::nn::LinearOptions(hidden, projection).bias(false)));
  const torch::NoGradGuard no_grad;
  input_->bias.narrow(0, hidden, hidden).fill_(1);  // the forget gate begins open (Jozefowicz et al., 2015)
}

at::Tensor LstmImpl::forward(const at::Tensor& x, LstmState& state) {
  const at::Tensor from_input = input_->forward(x);  // all time steps at once
  if (!state.h.defined()) {
    // Zeros of the gates' dtype: f32 zeros would make every state f32.
    state.c = torch::zeros({x.size(1), hidden_}, from_input.options());
    state.h = torch::zeros({x.size(1), recurrent_->options.in_features()}, from_input.options());
  }
  std::vector<at::Tensor> outputs;
  for (const auto& step : from_input.unbind(0)) outputs.push_back(cell(step, state));
  return torch::stack(outputs);
}

at::Tensor LstmImpl::cell(const at::Tensor& from_input, LstmState& state) {
  const auto gates = (from_input + recurrent_->forward(state.h)).chunk(4, 1);  // i, f, g, o
  state.c = gates[1].sigmoid() * state.c + gates[0].sigmoid() * gates[2].tanh();
  state.h = gates[3].sigmoid() * state.c.tanh();
  if (projection_) state.h = projection_->forward(state.h);
  return state.h;
}

GruImpl::GruImpl(int64_t inputs, int64_t hidden) : hidden_(hidden) {
  input_ = register_module("input", Linear(inputs, 3 * hidden));
  recurrent_ = register_module("recurrent", Linear(hidden, 3 * hidden));
}

at::Tensor GruImpl::forward(const at::Tensor& x) {
  const at::Tensor from_input = input_->forward(x);
  at::Tensor h = torch::zeros({x.size(1), hidden_}, from_input.options());
  std::vector<at::Tensor> outputs;
  for (const auto& step : from_input.unbind(0)) {
    const auto a = step.chunk(3, 1), b = recurrent_->forward(h).chunk(3, 1);  // reset, update, candidate
    const at::Tensor candidate = (a[2] + (a[0] + b[0]).sigmoid() * b[2]).tanh();
    h = candidate + (a[1] + b[1]).sigmoid() * (h - candidate);
    outputs.push_back(h);
  }
  return torch::stack(outputs);
}

}  // namespace mixed_precision
