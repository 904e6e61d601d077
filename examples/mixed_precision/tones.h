#pragma once

#include <palimpsest/base/random.h>

#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <vector>

namespace mixed_precision {

/// Spectrograms of sequences of tones in noise. Each of kSymbols letters sounds at two of kBands frequencies,
/// for 4 to 7 frames and with a random loudness. Silence lies between some letters, and always between two
/// equal ones.
struct Tones {
  static constexpr int64_t kFrames = 64, kBands = 24, kSymbols = 10;

  torch::Tensor spectrograms;                 ///< (n, 1, kFrames, kBands), f32
  std::vector<std::vector<int64_t>> letters;  ///< of each sequence, in [1, kSymbols]; 0 is the blank of CTC

  Tones(uint64_t seed, uint64_t part, int64_t index, int64_t n)
      : spectrograms(torch::empty({n, 1, kFrames, kBands})), letters(static_cast<size_t>(n)) {
    palimpsest::Random random = palimpsest::Random::stream(seed, part, static_cast<uint64_t>(index));
    auto values = spectrograms.accessor<float, 4>();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t t = 0; t < kFrames; ++t)
        for (int64_t band = 0; band < kBands; ++band)
          values[i][0][t][band] = static_cast<float>(random.uniform(-0.5, 0.5));
      auto& said = letters[static_cast<size_t>(i)];
      for (int64_t t = random.below(4);;) {
        const int64_t letter = 1 + random.below(kSymbols), length = 4 + random.below(4);
        if (!said.empty() && said.back() == letter) t += 2;
        if (t + length > kFrames) break;
        said.push_back(letter);
        const double loudness = random.uniform(0.7, 1.5);
        for (const int64_t end = t + length; t < end; ++t)
          for (int64_t band = 0; band < kBands; ++band)
            values[i][0][t][band] += static_cast<float>(loudness * energy(letter, band));
        t += random.below(3);
      }
    }
  }

 private:
  /// A letter has two resonances, as a vowel does.
  static double energy(int64_t letter, int64_t band) {
    const auto bump = [&](double center) {
      return std::exp(-0.5 * std::pow((static_cast<double>(band) - center) / 1.2, 2));
    };
    return bump(2.0 + static_cast<double>(letter)) + bump(12.0 + static_cast<double>(letter * 7 % 11));
  }
};

}  // namespace mixed_precision
