#pragma once

#include <palimpsest/base/random.h>

#include <torch/types.h>

#include <array>
#include <cstdint>
#include <vector>

namespace mixed_precision {

/// A language whose sentences agree over a distance: an opening word of one of kKinds kinds, 2 to 5 words of
/// a chain drawn from the seed, in which each word has two successors, and the closing word of the opening's
/// kind. Words in [0, kKinds) open, words in [kKinds, 2 kKinds) close, all others lie between.
class Language {
 public:
  static constexpr int64_t kKinds = 4, kBetween = 40, kWords = 2 * kKinds + kBetween;

  explicit Language(uint64_t seed) : seed_(seed), successors_(kBetween) {
    palimpsest::Random random = palimpsest::Random::stream(seed, 0);
    for (auto& two : successors_)
      for (auto& word : two) word = random.below(kBetween);
  }

  /// Returns the `index`-th text of `part` (1: training, 2: held out) as (length + 1, n) words, time first.
  /// Inputs are all rows but the last, targets all but the first. Each column begins with a new sentence.
  torch::Tensor text(uint64_t part, int64_t index, int64_t n, int64_t length) const {
    const torch::Tensor words = torch::empty({length + 1, n}, torch::kLong);
    auto w = words.accessor<int64_t, 2>();
    palimpsest::Random random = palimpsest::Random::stream(seed_, part, static_cast<uint64_t>(index));
    for (int64_t column = 0; column < n; ++column) {
      int64_t left = -1, kind = 0, word = 0;  // words before the closing one; -1: a sentence begins
      for (int64_t t = 0; t <= length; ++t) {
        if (left < 0) {
          left = 2 + random.below(4);
          word = random.below(kBetween);
          w[t][column] = kind = random.below(kKinds);
        } else if (left-- == 0) {
          w[t][column] = kKinds + kind;
        } else {
          word = successors_[static_cast<size_t>(word)][random.uniform() < 0.7 ? 0 : 1];
          w[t][column] = 2 * kKinds + word;
        }
      }
    }
    return words;
  }

 private:
  uint64_t seed_;
  std::vector<std::array<int64_t, 2>> successors_;
};

}  // namespace mixed_precision
