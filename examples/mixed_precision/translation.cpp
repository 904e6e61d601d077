// Translation (section 4.4 of the paper): LSTM encoder and decoder of two layers each with additive
// attention, plain SGD with clipped gradients, as in the tutorial that the paper trains. The languages are
// generated (grammar.h). Figures for held-out sentences, decoded greedily: the share of words that are right,
// and of sentences without a fault.
#include "examples/mixed_precision/grammar.h"
#include "examples/mixed_precision/recurrent.h"
#include "examples/mixed_precision/support.h"

#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace mixed_precision {
namespace {

using palimpsest::nn::Linear;

constexpr int64_t kBatch = 64, kHidden = 96, kEmbedding = 48;

struct TranslatorImpl : torch::nn::Module {
  TranslatorImpl()
      : source_words(register_module("source_words", torch::nn::Embedding(Grammar::kWords, kEmbedding))),
        target_words(
            register_module("target_words", torch::nn::Embedding(Grammar::kTargetWords, kEmbedding))),
        encoder1(register_module("encoder1", Lstm(kEmbedding, kHidden))),
        encoder2(register_module("encoder2", Lstm(kHidden, kHidden))),
        decoder1(register_module("decoder1", Lstm(kEmbedding + kHidden, kHidden))),
        decoder2(register_module("decoder2", Lstm(kHidden, kHidden))),
        key(register_module("key", Linear(kHidden, kHidden))),
        query(register_module("query", Linear(kHidden, kHidden))),
        score(register_module("score", Linear(kHidden, 1))),
        output(register_module("output", Linear(2 * kHidden, Grammar::kTargetWords))) {}

  struct State {
    LstmState first, second;
    at::Tensor values, keys, padding;  // (s, n, hidden) each; (s, n, 1): where the source has ended
    at::Tensor context;                // (n, hidden): the decoder's last weighted sum of `values`
  };

  /// source: (s, n) words
  State encode(const at::Tensor& source) {
    LstmState bottom, top;
    State state;
    state.values = encoder2->forward(encoder1->forward(source_words->forward(source), bottom), top);
    state.keys = key->forward(state.values);
    state.padding = (source == Grammar::kPad).unsqueeze(2);
    state.first = bottom;  // the decoder continues where the encoder ends
    state.second = top;
    state.context = torch::zeros_like(top.h);
    return state;
  }

  /// (n) last words -> (n, words) logits of the next words
  at::Tensor decode(const at::Tensor& words, State& state) {
    const at::Tensor embedded = target_words->forward(words).to(state.context.scalar_type());
    const at::Tensor x = torch::cat({embedded, state.context}, 1).unsqueeze(0);
    const at::Tensor h = decoder2->forward(decoder1->forward(x, state.first), state.second).squeeze(0);
    const at::Tensor scores = score->forward((state.keys + query->forward(h)).tanh());  // (s, n, 1)
    // Softmax over the source, in f32; a score of minus infinity takes no part.
    const at::Tensor weights = scores.to(at::kFloat).masked_fill(state.padding, -INFINITY).softmax(0);
    state.context = (weights.to(h.scalar_type()) * state.values).sum(0);
    return output->forward(torch::cat({h, state.context}, 1));
  }

  torch::nn::Embedding source_words, target_words;
  Lstm encoder1, encoder2, decoder1, decoder2;
  Linear key, query, score, output;
};
TORCH_MODULE(Translator);

Sentences sentences_of(const Training& training, uint64_t part, int64_t index, int64_t n) {
  Sentences sentences(training.seed(), part, index, n);
  sentences.source = training.moved(sentences.source);
  sentences.target = training.moved(sentences.target);
  return sentences;
}

/// Returns the mean loss over words, in f32. The decoder gets the right words so far.
at::Tensor loss_of(Training& training, Translator& model, const Sentences& sentences) {
  std::vector<at::Tensor> logits;
  {
    const auto guard = training.guard();
    auto state = model->encode(sentences.source);
    for (int64_t t = 0; t + 1 < sentences.target.size(0); ++t)
      logits.push_back(model->decode(sentences.target[t], state));
  }
  const at::Tensor next = sentences.target.narrow(0, 1, sentences.target.size(0) - 1);
  return torch::cross_entropy_loss(torch::stack(logits).flatten(0, 1).to(at::kFloat), next.flatten(), {},
                                   at::Reduction::Mean, Grammar::kPad);
}

std::vector<Metric> evaluate(Training& training, Translator& model) {
  const torch::NoGradGuard no_grad;
  const Sentences sentences = sentences_of(training, 2, 0, 512);
  const auto guard = training.guard();
  auto state = model->encode(sentences.source);
  at::Tensor words = sentences.target[0];
  std::vector<at::Tensor> right, counted;
  for (int64_t t = 1; t < sentences.target.size(0); ++t) {
    words = model->decode(words, state).argmax(1);
    counted.push_back(sentences.target[t] != Grammar::kPad);
    right.push_back(words == sentences.target[t]);
  }
  const at::Tensor of_words = torch::stack(right), is_word = torch::stack(counted);
  return {{"word_accuracy", of_words.masked_select(is_word).to(at::kDouble).mean().item<double>()},
          {"exact_match",
           of_words.logical_or(is_word.logical_not()).all(0).to(at::kDouble).mean().item<double>()}};
}

void train(Training& training) {
  Translator model;
  model->to(training.device());
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.8).momentum(0.9));
  training.run(sgd, /*clip=*/5, [&](int64_t step) {
    return loss_of(training, model, sentences_of(training, 1, step, kBatch));
  });
  training.finish(evaluate(training, model));
}

}  // namespace
}  // namespace mixed_precision

int main(int argc, char** argv) {
  return mixed_precision::run(argc, argv, "translation",
                              "Translation: LSTM with attention, SGD; generated languages.", 450,
                              mixed_precision::train);
}
