#pragma once

#include "palimpsest/base/error.h"
#include "palimpsest/base/operation_name.h"
#include "palimpsest/distributed/launch.h"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;  // <torch/csrc/distributed/c10d/ProcessGroup.hpp>
}

/// Processes that train one network together: the ranks of a group. The transport is libtorch's: Gloo for
/// tensors on the CPU, NCCL for those on a GPU.
///
///   if (const auto launch = distributed::launch_from_environment()) {
///     distributed::Group group(*launch, {.identity = my_options_as_text});
///     group.broadcast(net->parameters(), "the first weights");
///     ...
///   }
///
/// A collective is an operation that all ranks must call, in the same order. Every collective has a name,
/// `what`, for messages: "gradients", "metrics of epoch 3".
///
/// Faults. Each rank has a thread, the watcher, which looks into the store where the ranks met (5 times per
/// second up to 60 ranks, more slowly for more). These end a collective, running or next, on every rank:
///  - A rank calls fail(message): the others throw Error with that message and its kind.
///  - A rank is killed, or leaves while others wait for it: the others throw Error(kPeer), which names the
///    rank and the collective. Gloo notices at once that a connection has closed; the watcher then calls
///    the roll and names the ranks that do not answer in 1.5 s (more than 60 ranks: longer). Without Gloo's notice (a machine without
///    power, a GPU's collective) this takes until the timeout.
///  - A collective takes longer than the timeout: Error(kPeer) names the ranks that are not there, or those
///    that have not reached the collective.
/// All ranks report the fault that was noticed first. After a fault every collective throws it again; the way
/// out is to end the process, and to let the launcher start all ranks again.
/// A group of several ranks makes the process ignore SIGPIPE, unless the program handles it: writing to a rank
/// that is gone is an error, not the end. It raises the soft limit of open files if the group needs more.
/// Collectives of others over process_group() (c10d::Reducer, operators with `group=`) end in the same way. A
/// GPU's collective runs on the GPU: the host does not wait in it, and at a fault NCCL's communicators are
/// aborted, so that the host wakes where it waits for the GPU.
namespace palimpsest::distributed {

struct GroupOptions {
  /// How long a rank waits for the others, when it connects and in each collective. It ends waiting for ranks
  /// that hang; ranks that are killed are noticed without it. 10 minutes: longer than a rank 0 that writes a
  /// checkpoint to a slow disk, shorter than an operator's patience. Above 0, at most a year.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// The name under which operators find the group (c10d::resolve_process_group). It must be unique among the
  /// groups that are alive in a process, and the same on all ranks.
  std::string name = "palimpsest";
  /// Lines that must be equal on all ranks: the configuration of the run. They are compared when the ranks
  /// connect, as are the versions of palimpsest and libtorch.
  std::string identity = {};
  /// A socket that is bound and listens already, for the store of rank 0; the group closes it. -1: rank 0
  /// binds Launch::port. A process that starts the ranks itself can bind port 0, so that no other program
  /// takes the port, and hand the socket to rank 0.
  int listen_fd = -1;
  /// Asked some times per second until the ranks are connected, but not in the moment between their meeting and their
  /// connecting: true ends that on all ranks that have come, with Error(kPeer) that names this rank. A program
  /// gives up there at a signal. Empty: never.
  std::function<bool()> gives_up = {};
  /// Called once on the watcher's thread for a fault that this rank did not publish itself, before running
  /// collectives end. It may end the process: a program prints one line and calls std::_Exit. Empty:
  /// collectives throw. Must not call the group.
  std::function<void(const Error& fault)> on_fault = {};
};

/// Collectives that a rank has taken part in since its group was made, those of c10d::Reducer and of
/// operators among them. Barriers and exchanges through the store at the start are not counted.
struct Traffic {
  int64_t collectives = 0;
  /// Bytes of this rank's tensors that the collectives read: the size of the tensor for all-reduce, broadcast
  /// and all-gather (of one rank's share). Algorithms send a multiple: a ring all-reduce 2 (size - 1) / size.
  int64_t bytes = 0;
  bool operator==(const Traffic&) const = default;
  Traffic operator-(const Traffic& earlier) const {
    return {collectives - earlier.collectives, bytes - earlier.bytes};
  }
};

/// The ranks of a run, from the connection to the end of the object. Collectives may be called from several
/// threads only if their order is the same on all ranks.
class Group {
 public:
  /// Connects the ranks, compares what must be equal, and registers the group by its name. Blocks until all
  /// ranks are there. One rank alone opens no port, unless a launcher's store listens.
  /// Throws Error(kPeer) if ranks are missing after the timeout (the message names them) or if the store
  /// cannot be reached; Error(kUsage) within a second after the ranks met, on all ranks, if versions,
  /// number of ranks or identity differ: the message names two ranks and the first line that differs;
  /// Error(kUsage) for a name that is in use, a timeout of 0 or less, or two processes with the same rank.
  explicit Group(const Launch& launch, const GroupOptions& options = {});

  /// Leaves the group. Waits a moment for the others, so that none loses a message of the last collective;
  /// the rank whose process holds the store leaves last: it waits until each of the others has left or no
  /// longer lives, and at most the timeout. Let the others leave in time: without the store they end with
  /// Error(kPeer). After that neither thread nor port of the group is left. (After a fault, threads that
  /// wait for a rank that hangs stay until the process ends.) DataParallel objects must be gone before.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int rank() const;
  int size() const;
  const std::string& name() const;
  const Launch& launch() const;
  uint16_t port() const;  ///< of the store; 0 if there is none (one rank alone)
  bool has_cuda() const;  ///< CUDA tensors are accepted (NCCL)
  std::chrono::milliseconds timeout() const;
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;

  // --- Collectives on dense tensors, on the CPU, or on a GPU if has_cuda(). On a GPU they return when the
  // work is in the current stream; on the CPU, when it is done. Gradients do not flow.

  /// Overwrites `tensors` with those of rank `root`. Shapes, dtypes and devices must be equal on all ranks.
  /// Any number of tensors and dtypes; they go in pieces of up to 25 MiB per dtype and device.
  void broadcast(const std::vector<at::Tensor>& tensors, const std::string& what, int root = 0);
  /// Overwrites `tensor` with the sum over the ranks. All ranks get the same bits. The order of the sum is
  /// the transport's, so more than two ranks may give other last bits than a sum in rank order.
  void all_reduce_sum(const at::Tensor& tensor, const std::string& what);
  /// Overwrites `tensor` with the largest value over the ranks.
  void all_reduce_max(const at::Tensor& tensor, const std::string& what);
  /// Returns the tensors of all ranks in rank order. Shape, dtype and device must be equal on all ranks.
  std::vector<at::Tensor> all_gather(const at::Tensor& tensor, const std::string& what);

  // --- Collectives on values. All ranks get the same bits. They use the CPU's transport.

  /// Returns the sums over the ranks, added in rank order, in f64. The number of values must be equal.
  std::vector<double> sum(std::span<const double> values, const std::string& what);
  std::vector<int64_t> sum(std::span<const int64_t> values, const std::string& what);  ///< exact
  double sum(double value, const std::string& what);
  int64_t sum(int64_t value, const std::string& what);
  int64_t max(int64_t value, const std::string& what);
  bool any(bool value, const std::string& what);  ///< true on all ranks if it is true on one
  bool all(bool value, const std::string& what);
  /// Returns the bytes of each rank, in rank order; any number of bytes per rank. 2 collectives.
  std::vector<std::string> all_gather_bytes(const std::string& bytes, const std::string& what);
  /// Returns the bytes of rank `root`. 2 collectives.
  std::string broadcast_bytes(const std::string& bytes, const std::string& what, int root = 0);
  /// Returns when all ranks have called it.
  void barrier(const std::string& what);
  /// Returns if the lines of `text` are the same on all ranks. Else throws Error(kind) on all ranks; the
  /// message is "<what> of rank 0 and rank 2 differ: '<line>' and '<line>'". 4 collectives.
  void require_same(const std::string& text, const std::string& what, ErrorKind kind = ErrorKind::kUsage);

  // --- Faults

  /// Publishes that this rank cannot go on. The others throw Error(kind, "rank 1 of 4: <message>") in the
  /// collective that they wait in, or in the next one, within about half a second. Returns when they can
  /// see the message: at once; on the rank that holds the store, when they have read it, after 1.5 s at the
  /// latest. No collective. The first fault of the group counts; later ones have no effect.
  void fail(const std::string& message, ErrorKind kind = ErrorKind::kPeer) noexcept;

  /// Throws `error`, which every rank throws after the same collective. So this rank, if it leaves the group by it,
  /// publishes no fault, which a slower rank could take for its own.
  [[noreturn]] void throw_on_all(const Error& error);
  /// The fault that ended the group, if any.
  std::optional<Error> fault() const;
  /// Throws fault(), if any. Call it where a rank works for long without a collective.
  void check() const;

  // --- Stopping all ranks after the same step

  /// Notes that this rank should stop, for example on SIGTERM. `reason` is above 0, usually a signal's
  /// number; the largest counts. May be called in a signal handler.
  void request_stop(int reason) noexcept;
  int stop_requested() const noexcept;  ///< of this rank; 0 if nothing was requested
  /// Returns the largest reason of all ranks, 0 if none: one collective of 8 bytes per step, the same
  /// answer on all ranks. A loop that sums values per step anyway sends stop_requested() > 0 along as one
  /// more value instead.
  int agree_on_stop();

  Traffic traffic() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace palimpsest::distributed
