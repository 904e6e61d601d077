#include "palimpsest/data/webdataset/open_shards.h"

#include <algorithm>
#include <utility>

namespace palimpsest::data::shards {
namespace {

constexpr std::size_t kMostOpen = 64;  // a process may open 1024 files in all
constexpr uint64_t kStretch = 8 << 20;

}  // namespace

std::string OpenShards::read(const Shard& shard, const Piece& piece, const std::string& name) {
  return open(shard, piece)->read({name, piece.offset, piece.size});
}

std::shared_ptr<io::TarReader> OpenShards::open(const Shard& shard, const Piece& piece) {
  const uint64_t stretch = piece.offset / kStretch;
  std::shared_ptr<io::TarReader> archive;
  {
    const std::lock_guard lock(mutex_);
    Open& found = most_recent(shard);
    archive = found.archive;
    // After two pieces per example begins another epoch, and the system may have dropped what it has read.
    if (found.reads++ == 2 * shard.examples.size()) {
      found.told.assign(found.told.size(), false);
      found.reads = 1;
    }
    if (stretch >= found.told.size() || found.told[stretch]) return archive;
    found.told[stretch] = true;
  }
  archive->will_read(stretch * kStretch, kStretch);
  return archive;
}

OpenShards::Open& OpenShards::most_recent(const Shard& shard) {
  const auto at =
      std::find_if(open_.begin(), open_.end(), [&](const Open& open) { return open.shard == &shard; });
  if (at == open_.end()) {
    auto archive = std::make_shared<io::TarReader>(shard.path);
    const uint64_t stretches = archive->size() / kStretch + 1;
    open_.push_front({&shard, std::move(archive), std::vector<bool>(stretches), 0});
    if (open_.size() > kMostOpen) open_.pop_back();
  } else {
    std::rotate(open_.begin(), at, at + 1);
  }
  return open_.front();
}

}  // namespace palimpsest::data::shards
