#include "palimpsest/data/webdataset/shuffle.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace palimpsest::data::shards {
namespace {

/// Passes `examples` through a buffer.
void shuffle_in_buffer(std::vector<int64_t>& examples, int64_t buffer_size, Random& random) {
  const auto count = static_cast<int64_t>(examples.size());
  const int64_t size = std::min(buffer_size, count);
  std::vector<int64_t> buffer(examples.begin(), examples.begin() + size);
  for (int64_t out = 0; out < count; ++out) {
    int64_t& drawn = buffer[random.below(static_cast<int64_t>(buffer.size()))];
    const int64_t next = out + size;  // is at `out` or behind it, so it was not overwritten yet
    if (next < count) {
      examples[out] = std::exchange(drawn, examples[next]);
    } else {
      examples[out] = drawn;
      drawn = buffer.back();
      buffer.pop_back();
    }
  }
}

/// The examples of one stream that are left.
struct Stream {
  std::vector<int64_t> examples;
  std::size_t next = 0;
  std::size_t left() const { return examples.size() - next; }
};

}  // namespace

std::vector<int64_t> shuffled_shards(const std::vector<int64_t>& first, const ShuffleOptions& options,
                                     Random& random) {
  std::vector<std::size_t> shards(first.size() - 1);
  std::iota(shards.begin(), shards.end(), 0);
  for (auto i = static_cast<int64_t>(shards.size()) - 1; i > 0; --i)
    std::swap(shards[i], shards[random.below(i + 1)]);

  std::vector<Stream> streams(options.streams);
  const auto fewer = [](const Stream& a, const Stream& b) { return a.left() < b.left(); };
  for (const std::size_t shard : shards) {
    Stream& stream = *std::min_element(streams.begin(), streams.end(), fewer);
    for (int64_t i = first[shard]; i < first[shard + 1]; ++i) stream.examples.push_back(i);
  }
  for (Stream& stream : streams) shuffle_in_buffer(stream.examples, options.buffer, random);
  if (streams.size() == 1) return std::move(streams[0].examples);

  const int64_t total = first.back() - first.front();
  std::vector<int64_t> order;
  order.reserve(total);
  while (static_cast<int64_t>(order.size()) < total) {
    // As the loader divides a batch among ranks: the first parts have one example more.
    const int64_t batch = std::min(options.batch_size, total - static_cast<int64_t>(order.size()));
    for (int64_t s = 0; s < options.streams; ++s) {
      const int64_t part = batch / options.streams + (s < batch % options.streams ? 1 : 0);
      for (int64_t i = 0; i < part; ++i) {
        Stream* stream = &streams[s];
        if (stream->left() == 0) stream = &*std::max_element(streams.begin(), streams.end(), fewer);
        order.push_back(stream->examples[stream->next++]);
      }
    }
  }
  return order;
}

}  // namespace palimpsest::data::shards
