#pragma once

#include <palimpsest/base/random.h>

#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

/// Sentences of a small grammar and their translation, which determines the source:
///   source    NP verb NP [preposition NP]     NP = article [adjective] noun
///   target    NP [preposition NP] NP verb     NP = article noun [adjective]; both have the noun's gender
/// The verb moves to the end, the object behind the prepositional phrase, adjectives behind their nouns.
namespace mixed_precision {

struct Grammar {
  static constexpr int64_t kPad = 0, kBegin = 1, kEnd = 2;
  // First word of each class. Nouns with an even number have gender 0.
  static constexpr int64_t kArticle = 3, kAdjective = 5, kNoun = 17, kVerb = 57, kPreposition = 77,
                           kWords = 83;
  // In the target, articles and adjectives of gender 1 have words of their own, after all others.
  static constexpr int64_t kTargetWords = kWords + (kNoun - kArticle);

  using Words = std::vector<int64_t>;

  struct Pair {
    Words source, target;  ///< without kBegin and kEnd
  };

  static Pair sentence(palimpsest::Random& random) {
    Pair subject = noun_phrase(random), object = noun_phrase(random);
    const int64_t verb = kVerb + random.below(kPreposition - kVerb);
    Pair pair{subject.source, subject.target};
    pair.source.push_back(verb);
    append(pair.source, object.source);
    if (random.below(2) == 1) {
      const int64_t preposition = kPreposition + random.below(kWords - kPreposition);
      const Pair place = noun_phrase(random);
      pair.source.push_back(preposition);
      append(pair.source, place.source);
      pair.target.push_back(preposition);
      append(pair.target, place.target);
    }
    append(pair.target, object.target);
    pair.target.push_back(verb);
    return pair;
  }

 private:
  static Pair noun_phrase(palimpsest::Random& random) {
    const int64_t article = kArticle + random.below(kAdjective - kArticle),
                  noun = kNoun + random.below(kVerb - kNoun), gender = (noun - kNoun) % 2;
    const auto agreeing = [&](int64_t word) { return gender == 0 ? word : kWords + word - kArticle; };
    if (random.below(2) == 0) return {{article, noun}, {agreeing(article), noun}};
    const int64_t adjective = kAdjective + random.below(kNoun - kAdjective);
    return {{article, adjective, noun}, {agreeing(article), noun, agreeing(adjective)}};
  }
  static void append(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }
};

/// A batch of sentences, time first, padded with kPad: (longest, n) each. A target begins with kBegin and
/// ends with kEnd.
struct Sentences {
  torch::Tensor source, target;

  Sentences(uint64_t seed, uint64_t part, int64_t index, int64_t n) {
    palimpsest::Random random = palimpsest::Random::stream(seed, part, static_cast<uint64_t>(index));
    std::vector<Grammar::Pair> pairs;
    size_t longest = 0;
    for (int64_t i = 0; i < n; ++i) {
      pairs.push_back(Grammar::sentence(random));
      longest = std::max(longest, pairs.back().source.size());
    }
    source = torch::full({static_cast<int64_t>(longest), n}, Grammar::kPad, torch::kLong);
    target = torch::full({static_cast<int64_t>(longest) + 2, n}, Grammar::kPad, torch::kLong);
    auto s = source.accessor<int64_t, 2>(), t = target.accessor<int64_t, 2>();
    for (int64_t i = 0; i < n; ++i) {
      const auto& [from, to] = pairs[static_cast<size_t>(i)];
      const auto length = static_cast<int64_t>(from.size());
      t[0][i] = Grammar::kBegin;
      t[length + 1][i] = Grammar::kEnd;
      for (int64_t k = 0; k < length; ++k) {
        s[k][i] = from[static_cast<size_t>(k)];
        t[k + 1][i] = to[static_cast<size_t>(k)];
      }
    }
  }
};

}  // namespace mixed_precision
