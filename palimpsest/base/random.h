#pragma once

#include <cstdint>

namespace palimpsest {

/// SplitMix64, a random generator whose state is one number: any worker thread can draw the stream that
/// (seed, epoch, index) names. It gives the same numbers on every platform; std's distributions do not.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  /// Returns an independent stream for the given coordinates, e.g. Random::stream(seed, epoch, sample index).
  static Random stream(uint64_t seed, uint64_t a, uint64_t b = 0) {
    Random r(seed);
    r.state_ = r.next() ^ (a * 0xD1342543DE82EF95ull);
    r.state_ = r.next() ^ (b * 0xAF251AF3B0F025B5ull);
    r.next();
    return r;
  }

  /// Returns a number that is uniform over all 64-bit numbers.
  uint64_t next() {
    uint64_t z = (state_ += kStep);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  /// Equivalent to calling next() `numbers` times, in O(1).
  void skip(uint64_t numbers) { state_ += numbers * kStep; }

  /// Returns a number that is uniform in [0, 1), with 53 random bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// Returns a number that is uniform in [low, high).
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  /// Returns a number that is uniform in [0, bound), for bound > 0, with a bias below bound / 2^64.
  int64_t below(int64_t bound) {
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) * static_cast<uint64_t>(bound)) >>
                                64);
  }

 private:
  static constexpr uint64_t kStep = 0x9E3779B97F4A7C15ull;
  uint64_t state_;
};

}  // namespace palimpsest
