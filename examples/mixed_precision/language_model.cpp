// A language model after bigLSTM (section 4.5 of the paper): two layers of LSTM, each with a projection, a
// softmax over all words from the projection, Adagrad. The text is generated (language.h); a closing word
// must agree with a word that stands 3 to 6 words before it, so its gradient passes through that many steps.
// Figures: perplexity of a held-out text, and the share of closing words whose kind has the largest of the four
// logits of closing words (1/4 by chance).
#include "examples/mixed_precision/language.h"
#include "examples/mixed_precision/recurrent.h"
#include "examples/mixed_precision/support.h"

#include <torch/torch.h>

#include <cmath>

namespace mixed_precision {
namespace {

constexpr int64_t kColumns = 512, kLength = 16, kHidden = 48, kProjection = 24;

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(Language::kWords, kProjection))),
        first(register_module("first", Lstm(kProjection, kHidden, kProjection))),
        second(register_module("second", Lstm(kProjection, kHidden, kProjection))),
        softmax(register_module("softmax", palimpsest::nn::Linear(kProjection, Language::kWords))) {}

  /// (t, n) words -> (t, n, words) logits of the next one
  at::Tensor forward(const at::Tensor& words) {
    LstmState state1, state2;
    return softmax->forward(second->forward(first->forward(embedding->forward(words), state1), state2));
  }

  torch::nn::Embedding embedding;
  Lstm first, second;
  palimpsest::nn::Linear softmax;
};
TORCH_MODULE(LanguageModel);

at::Tensor logits_of(Training& training, LanguageModel& model, const at::Tensor& text) {
  const auto guard = training.guard();
  return model->forward(text.narrow(0, 0, text.size(0) - 1));
}

/// Returns the mean loss over words, in f32.
at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& text) {
  const at::Tensor next = text.narrow(0, 1, text.size(0) - 1);
  return torch::cross_entropy_loss(logits.flatten(0, 1).to(at::kFloat), next.flatten());
}

std::vector<Metric> evaluate(Training& training, LanguageModel& model, const Language& language) {
  const torch::NoGradGuard no_grad;
  const at::Tensor text = training.moved(language.text(2, 0, 256, kLength));
  const at::Tensor logits = logits_of(training, model, text);
  const double loss = loss_of(logits, text).item<double>();
  const at::Tensor next = text.narrow(0, 1, kLength) - Language::kKinds;
  const at::Tensor closes = (next >= 0).logical_and(next < Language::kKinds);
  const at::Tensor guess = logits.narrow(2, Language::kKinds, Language::kKinds).argmax(2);
  const double agreement = (guess == next).masked_select(closes).to(at::kDouble).mean().item<double>();
  return {{"perplexity", std::exp(loss)}, {"agreement", agreement}};
}

void train(Training& training) {
  const Language language(training.seed());
  LanguageModel model;
  model->to(training.device());
  // From 0, the first step would take only signs: +-0.2 for every weight, however small its gradient.
  torch::optim::Adagrad adagrad(model->parameters(),
                                torch::optim::AdagradOptions(0.2).initial_accumulator_value(1e-3));
  training.run(adagrad, /*clip=*/1, [&](int64_t step) {
    const at::Tensor text = training.moved(language.text(1, step, kColumns, kLength));
    return loss_of(logits_of(training, model, text), text);
  });
  training.finish(evaluate(training, model, language));
}

}  // namespace
}  // namespace mixed_precision

int main(int argc, char** argv) {
  return mixed_precision::run(argc, argv, "language_model",
                              "A language model: LSTM with projections, Adagrad; generated text.", 250,
                              mixed_precision::train);
}
