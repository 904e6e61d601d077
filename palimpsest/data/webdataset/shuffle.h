#pragma once

#include "palimpsest/base/random.h"

#include <cstdint>
#include <vector>

namespace palimpsest::data::shards {

struct ShuffleOptions {
  int64_t buffer = 1000;   ///< examples per stream, at least 1
  int64_t streams = 1;     ///< at least 1
  int64_t batch_size = 1;  ///< images, at least 1
};

/// Returns the order of an epoch, each example once (data/webdataset.h). Shard k has the examples from
/// first[k] up to first[k + 1]. The shards go, in random order, each to the stream that has the fewest examples. An
/// example that is drawn from a full buffer has waited for `buffer` others on average.
std::vector<int64_t> shuffled_shards(const std::vector<int64_t>& first, const ShuffleOptions& options,
                                     Random& random);

}  // namespace palimpsest::data::shards
