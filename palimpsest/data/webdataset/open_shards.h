#pragma once

#include "palimpsest/data/webdataset/shard.h"
#include "palimpsest/io/tar.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace palimpsest::data::shards {

/// The archives that are open, a few at a time. The system is told to read a stretch of an archive at its
/// first example. Several threads may read at the same time.
class OpenShards {
 public:
  /// Returns the bytes of a piece; `name` is for errors. Throws Error(kData) if the shard cannot be read.
  std::string read(const Shard& shard, const Piece& piece, const std::string& name);

 private:
  struct Open {
    const Shard* shard;
    std::shared_ptr<io::TarReader> archive;
    std::vector<bool> told;  // of each stretch
    std::size_t reads = 0;   // since `told` was cleared
  };

  std::shared_ptr<io::TarReader> open(const Shard& shard, const Piece& piece);
  Open& most_recent(const Shard& shard);

  std::mutex mutex_;
  std::deque<Open> open_;
};

}  // namespace palimpsest::data::shards
