// A speech recognizer after Deep Speech 2 (section 4.3 of the paper): two convolutions over time and
// frequency, gated recurrent units, a row convolution, connectionist temporal classification (CTC), SGD with
// Nesterov's momentum. The utterances are generated (tones.h). Figure: character error rate of held-out ones,
// decoded greedily.
#include "examples/mixed_precision/recurrent.h"
#include "examples/mixed_precision/support.h"
#include "examples/mixed_precision/tones.h"

#include <torch/torch.h>

#include <algorithm>
#include <vector>

namespace mixed_precision {
namespace {

constexpr int64_t kBatch = 32, kChannels = 8, kHidden = 96, kAhead = 2;

using palimpsest::nn::Conv2d;
using palimpsest::nn::Linear;

Conv2d convolution(int64_t inputs, int64_t stride_in_time) {
  return Conv2d(torch::nn::Conv2dOptions(inputs, kChannels, 5).stride({stride_in_time, 2}).padding(2));
}

struct RecognizerImpl : torch::nn::Module {
  RecognizerImpl()
      : conv1(register_module("conv1", convolution(1, 2))),
        conv2(register_module("conv2", convolution(kChannels, 1))),
        gru1(register_module("gru1", Gru(kChannels * Tones::kBands / 4, kHidden))),
        gru2(register_module("gru2", Gru(kHidden, kHidden))),
        output(register_module("output", Linear(kHidden, Tones::kSymbols + 1))),
        row(register_parameter("row", torch::full({kAhead + 1, kHidden}, 1.0 / (kAhead + 1)))) {}

  /// (n, 1, frames, bands) -> (frames / 2, n, symbols + 1) logits; 0 is the blank
  at::Tensor forward(const at::Tensor& spectrograms) {
    const at::Tensor x = conv2->forward(conv1->forward(spectrograms).clamp(0, 20)).clamp(0, 20);
    const at::Tensor h = gru2->forward(gru1->forward(x.permute({2, 0, 1, 3}).flatten(2)));
    return output->forward(look_ahead(h));
  }

  /// Row convolution: mixes each feature of a frame with itself in the kAhead frames that follow.
  at::Tensor look_ahead(const at::Tensor& h) {
    const auto weight = [&](int64_t k) { return row[k].to(h.scalar_type()); };
    const at::Tensor longer = torch::constant_pad_nd(h, {0, 0, 0, 0, 0, kAhead});
    at::Tensor sum = h * weight(0);
    for (int64_t k = 1; k <= kAhead; ++k) sum = sum + longer.narrow(0, k, h.size(0)) * weight(k);
    return sum;
  }

  Conv2d conv1, conv2;
  Gru gru1, gru2;
  Linear output;
  at::Tensor row;
};
TORCH_MODULE(Recognizer);

at::Tensor logits_of(Training& training, Recognizer& model, const Tones& tones) {
  const auto guard = training.guard();
  return model->forward(training.moved(tones.spectrograms));
}

/// Returns the mean over utterances of the loss per letter, in f32.
at::Tensor loss_of(const at::Tensor& logits, const Tones& tones) {
  std::vector<int64_t> letters, lengths;
  for (const auto& said : tones.letters) {
    letters.insert(letters.end(), said.begin(), said.end());
    lengths.push_back(static_cast<int64_t>(said.size()));
  }
  const std::vector<int64_t> frames(lengths.size(), logits.size(0));
  return torch::ctc_loss(logits.to(at::kFloat).log_softmax(2), torch::tensor(letters), torch::tensor(frames),
                         torch::tensor(lengths), 0, at::Reduction::Mean);
}

/// Decodes greedily: the likeliest symbol of each frame, without repetitions and blanks.
std::vector<int64_t> decode(const at::Tensor& symbols) {
  std::vector<int64_t> letters;
  for (int64_t t = 0, last = 0; t < symbols.size(0); ++t) {
    const int64_t symbol = symbols[t].item<int64_t>();
    if (symbol != last && symbol != 0) letters.push_back(symbol);
    last = symbol;
  }
  return letters;
}

/// Returns how many letters must be inserted, removed or changed to turn `a` into `b`.
int64_t edit_distance(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> row(b.size() + 1);
  for (size_t j = 0; j < row.size(); ++j) row[j] = static_cast<int64_t>(j);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

std::vector<Metric> evaluate(Training& training, Recognizer& model) {
  const torch::NoGradGuard no_grad;
  const Tones tones(training.seed(), 2, 0, 256);
  const at::Tensor logits = logits_of(training, model, tones), best = logits.argmax(2).cpu();
  int64_t faults = 0, letters = 0;
  for (size_t i = 0; i < tones.letters.size(); ++i) {
    faults += edit_distance(decode(best.select(1, static_cast<int64_t>(i))), tones.letters[i]);
    letters += static_cast<int64_t>(tones.letters[i].size());
  }
  return {{"character_error_rate", static_cast<double>(faults) / static_cast<double>(letters)},
          {"held_out_loss", loss_of(logits, tones).item<double>()}};
}

void train(Training& training) {
  Recognizer model;
  model->to(training.device());
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9).nesterov(true));
  training.run(sgd, /*clip=*/5, [&](int64_t step) {
    const Tones tones(training.seed(), 1, step, kBatch);
    return loss_of(logits_of(training, model, tones), tones);
  });
  training.finish(evaluate(training, model));
}

}  // namespace
}  // namespace mixed_precision

int main(int argc, char** argv) {
  return mixed_precision::run(argc, argv, "speech",
                              "Speech recognition: convolutions, GRU, CTC; generated tones.", 600,
                              mixed_precision::train);
}
