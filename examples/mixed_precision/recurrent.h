#pragma once

#include <ATen/core/Tensor.h>
#include <palimpsest/nn/linear.h>

#include <cstdint>

/// Recurrent layers made of palimpsest::nn::Linear, which can store f16 and compute in f32, and saves no
/// 16-bit copy of a weight per time step. torch::nn::LSTM can do neither, and oneDNN refuses it in f16 on
/// a CPU. Sequences are (t, n, features): time first.
namespace mixed_precision {

/// The state of one layer: h (n, outputs) and c (n, hidden). Undefined tensors stand for zeros, before the
/// first step.
struct LstmState {
  at::Tensor h, c;
};

/// Long short-term memory. With `projection` > 0 a linear map to that many outputs follows it (Sak et al.,
/// 2014).
class LstmImpl : public torch::nn::Module {
 public:
  LstmImpl(int64_t inputs, int64_t hidden, int64_t projection = 0);
  /// (t, n, inputs) -> (t, n, outputs). Continues from `state` and overwrites it with the last state.
  at::Tensor forward(const at::Tensor& x, LstmState& state);

 private:
  at::Tensor cell(const at::Tensor& from_input, LstmState& state);

  int64_t hidden_;
  palimpsest::nn::Linear input_{nullptr}, recurrent_{nullptr}, projection_{nullptr};
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
  palimpsest::nn::Linear input_{nullptr}, recurrent_{nullptr};
};
TORCH_MODULE(Gru);

}  // namespace mixed_precision
