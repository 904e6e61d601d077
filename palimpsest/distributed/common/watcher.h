#pragma once

#include "palimpsest/base/error.h"
#include "palimpsest/distributed/common/bounded_store.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest::distributed {

/// Learns of faults in the group through the store where the ranks met, and ends what waits on this rank.
///
/// Keys of the store:
///   notice          a counter; whoever writes something that all should read adds 1. Reading the counter is
///                   the one request that a rank sends while nothing happens
///   fault           the first fault: "<kind>|<message>". The first writer wins
///   here/RANK       the answer to a roll call: "<notice>|<collectives begun>|<waits in one: 0 or 1>|<name of
///                   the last one>"
///   seen/RANK       RANK has read the fault
///   left/RANK       RANK has left the group: it takes part in no collective any more
///   done/RANK       RANK sends no request any more
class Watcher {
 public:
  struct Options {
    int rank = 0, size = 1;
    bool holds_store = false;           ///< the server of the store is in this process
    std::string store_owner;            ///< for messages: "rank 0 of 4, which holds the store at host:port,"
    std::chrono::milliseconds timeout;  ///< of collectives, for messages
    std::function<void(const Error&)> on_fault;
  };

  /// `store` holds the group's keys, over `connection`. Others must not use the connection: they may block it.
  Watcher(c10::intrusive_ptr<BoundedStore> connection, c10::intrusive_ptr<c10d::Store> store,
          Options options);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// Notes that a collective begins, and throws the fault if there is one.
  void begin(const std::string& what);
  int64_t begun() const;  ///< collectives
  /// Adds something that waits for other ranks in the collective `what`. At a fault `end` is called once,
  /// with the fault, on another thread or at once; not after remove().
  using End = std::function<void(const std::exception_ptr&)>;
  int64_t add(const std::string& what, End end);
  void remove(int64_t id);

  /// Reports that the transport failed in the collective `what`. Returns when the fault is known, or this rank
  /// has left. Where the store does not answer within some seconds, this is the fault. `advice`: what to do if
  /// all ranks live.
  void transport_failed(const std::string& what, const std::string& message, const std::string& advice = "");

  /// Publishes a fault of this rank; the first of the group counts. Does not call on_fault.
  void publish(const std::string& message, ErrorKind kind) noexcept;

  /// Tells the others that this rank has left. Then faults are no longer reported, and requests end soon.
  void leave() noexcept;
  /// Returns when all others have left, and after `limit` at the latest.
  void await_farewells(std::chrono::milliseconds limit) noexcept;
  /// Ends the thread and this rank's requests. Where the store is in this process, returns when the others
  /// send no request any more: those that live have left, or have read the fault. After `limit` at the
  /// latest.
  void finish(std::chrono::milliseconds limit) noexcept;

  std::optional<Error> fault() const;

  /// Called at a fault, after on_fault and before what waits is ended.
  void at_fault(std::function<void()> action);

 private:
  struct RollCall {
    std::vector<int> gone, left;
    struct Answer {
      int64_t begun;  // collectives
      bool waits;     // in one of them
      std::string last;
    };
    std::map<int, Answer> answers;
  };
  struct Broken {
    std::string what, message, advice;
  };

  void run();
  void poll();
  void diagnose(const Broken& broken);
  /// Erases the ranks that have one of the keys from `others`.
  void erase_with(std::set<int>& others, std::initializer_list<const char*> keys);
  std::set<int> others_alive() const;
  void await_readers(std::chrono::milliseconds limit);
  void stop();
  RollCall call_roll(std::chrono::milliseconds patience);
  std::string description(const Broken& broken, const RollCall& roll) const;
  void adopt(const std::string& encoded, bool own);
  void conclude(const Error& error, bool own);
  void store_is_gone(const std::string& why);
  void note_that_store_is_gone();
  bool store_is_known_gone() const;
  bool store_has(const std::string& key);

  const c10::intrusive_ptr<BoundedStore> connection_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const Options options_;
  const std::chrono::milliseconds interval_, patience_;

  std::mutex store_mutex_;  // one exchange of several requests at a time
  int64_t last_notice_ = 0;
  mutable std::mutex gone_mutex_;
  std::set<int> gone_;  // did not answer a roll call

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  struct Waiting {
    std::string what;
    End end;
  };
  std::map<int64_t, Waiting> waiting_;  // the oldest first
  int64_t next_id_ = 0;
  std::optional<Broken> broken_;
  std::optional<Error> fault_;
  std::function<void()> at_fault_;
  int64_t begun_ = 0;
  std::string last_;
  bool stopping_ = false, leaving_ = false, concluding_ = false, store_gone_ = false;
  std::thread thread_;
};

}  // namespace palimpsest::distributed
