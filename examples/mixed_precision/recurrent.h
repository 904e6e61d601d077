#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>

/// Recurrent layers as a user writes them, of torch::nn::Linear. palimpsest::nn::linear runs these: it knows
/// storage in f16 with maths in f32, and keeps no 16-bit copy of a weight for each time step. torch::nn::LSTM
/// does neither, and in f16 on a CPU oneDNN refuses it. Sequences are (t, n, features): time first.
namespace mixed_precision {

/// Of one layer: (n, outputs) and (n, hidden); undefined before the first step, which begins with zeros.
struct LstmState {
  at::Tensor h, c;
};

/// Long short-term memory, and with `projection` > 0 a linear map to as many outputs behind it (Sak et al.,
/// 2014).
class LstmImpl : public torch::nn::Module {
 public:
  LstmImpl(int64_t inputs, int64_t hidden, int64_t projection = 0);
  /// (t, n, inputs) -> (t, n, outputs); goes on from `state` and leaves the last one there.
  at::Tensor forward(const at::Tensor& x, LstmState& state);

 private:
  at::Tensor cell(const at::Tensor& from_input, LstmState& state);

  int64_t hidden_;
  torch::nn::Linear input_{nullptr}, recurrent_{nullptr}, projection_{nullptr};
};
TORCH_MODULE(Lstm);

/// Gated recurrent unit (Cho et al., 2014, in the form of cuDNN).
class GruImpl : public torch::nn::Module {
 public:
  GruImpl(int64_t inputs, int64_t hidden);
  /// (t, n, inputs) -> (t, n, hidden)
  at::Tensor forward(const at::Tensor& x);

 private:
  int64_t hidden_;
  torch::nn::Linear input_{nullptr}, recurrent_{nullptr};
};
TORCH_MODULE(Gru);

}  // namespace mixed_precision
