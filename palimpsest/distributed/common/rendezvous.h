#pragma once

#include "palimpsest/distributed/common/bounded_store.h"
#include "palimpsest/distributed/process_group.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <string>

namespace palimpsest::distributed {

/// The store where the ranks have met.
struct Meeting {
  /// The server of the store, if it is in this process. Nothing else keeps it alive.
  c10::intrusive_ptr<BoundedStore> server;
  /// Connections of the transport and of the watcher; none for one rank alone.
  c10::intrusive_ptr<BoundedStore> connection, watcher_connection;
  /// Keys of this group only, over these connections.
  c10::intrusive_ptr<c10d::Store> store, watcher_store;
  std::string store_owner;  ///< for messages: "rank 0 of 4, which holds the store at host:port,"
  uint16_t port = 0;
};

/// Returns when all ranks are there and have the same versions, size and identity. Throws as Group's
/// constructor.
Meeting meet(const Launch& launch, const GroupOptions& options);

/// Returns the store of one rank alone, in memory.
Meeting meet_nobody();

}  // namespace palimpsest::distributed
