#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest::data {

/// One example of an epoch: Dataset::get(index), or get_with_class(index, class_id) if class_id is not -1.
struct Draw {
  int64_t index;
  int64_t class_id = -1;
  bool operator==(const Draw&) const = default;
};

/// Decides which examples an epoch has, in place of a shuffle.
class Sampler {
 public:
  virtual ~Sampler() = default;
  /// Returns as many draws as the data set has examples. They depend on (seed, epoch) only, so that a resumed
  /// run and every rank have the same.
  virtual std::vector<Draw> epoch(uint64_t seed, int64_t epoch) const = 0;
  /// Returns the name that a checkpoint stores; a run goes on with the sampler that it began with.
  virtual std::string name() const = 0;
};

}  // namespace palimpsest::data
