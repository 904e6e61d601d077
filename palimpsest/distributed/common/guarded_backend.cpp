#include "palimpsest/distributed/common/guarded_backend.h"

#include "palimpsest/base/operation_name.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace palimpsest::distributed {
namespace {

using Pending = GuardedBackend::Pending;

std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown failure";
  }
}

int64_t bytes_of(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}
int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const auto& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

/// A collective on which the host waits. It ends when the transport's work ends well, or at a fault.
class GuardedWork : public c10d::Work {
 public:
  GuardedWork(Pending inner, std::shared_ptr<Guard> guard, std::string what)
      : Work(/*rank=*/-1, inner->retrieveOpType()),
        inner_(std::move(inner)),
        guard_(std::move(guard)),
        what_(std::move(what)),
        future_(c10::make_intrusive<c10::ivalue::Future>(inner_->getFuture()->elementType())) {}

  /// Follows `inner`. `running` counts the transport's works.
  static Pending follow(const Pending& inner, const std::shared_ptr<Guard>& guard, std::string what,
                        const std::shared_ptr<std::atomic<int>>& running) {
    auto work = c10::make_intrusive<GuardedWork>(inner, guard, std::move(what));
    work->id_ =
        guard->watcher->add(work->what_, [work](const std::exception_ptr& error) { work->end(error); });
    ++*running;
    inner->getFuture()->addCallback([work, running](c10::ivalue::Future& done) {
      --*running;
      if (done.hasError())
        work->transport_failed(done.exception_ptr());
      else
        work->succeed(done.value());
    });
    return work;
  }

  std::vector<at::Tensor> result() override { return inner_->result(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }

 private:
  void end(const std::exception_ptr& error) {
    if (ended_.exchange(true)) return;
    future_->setError(error);
    finish(error);
  }

  void succeed(const c10::IValue& value) {
    guard_->watcher->remove(id_);
    if (ended_.exchange(true)) return;
    future_->markCompleted(value);
    finish();
  }

  void transport_failed(const std::exception_ptr& failure) {
    if (ended_) return;
    guard_->watcher->transport_failed(what_, message_of(failure));
    // The watcher ends this work, but perhaps not yet: it ends one after the other. A stopped one has no fault.
    const auto fault = guard_->watcher->fault();
    end(fault ? std::make_exception_ptr(*fault) : failure);
  }

  const Pending inner_;
  const std::shared_ptr<Guard> guard_;
  const std::string what_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  int64_t id_ = 0;  // of the watcher
  std::atomic<bool> ended_{false};
};

}  // namespace

GuardedBackend::GuardedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Guard> guard,
                               bool host_waits)
    : Backend(inner->getRank(), inner->getSize()),
      inner_(std::move(inner)),
      guard_(std::move(guard)),
      host_waits_(host_waits) {}

GuardedBackend::~GuardedBackend() {
  // Gloo's destructor waits for its threads, which after a fault may wait for a rank that hangs. Then they
  // stay, with the memory that they write to, until the process ends.
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (*running_ > 0 && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (*running_ > 0) (void)inner_.release();
}

Pending GuardedBackend::start(const char* kind, int64_t bytes, const std::function<Pending()>& call) {
  const bool counted = bytes >= 0;
  const std::string& name = operation_name_now;
  const std::string what = !name.empty() ? fmt::format("{} ({})", name, kind)
                           : counted     ? fmt::format("{} of {} bytes", kind, bytes)
                                         : std::string(kind);
  if (guard_->watcher) guard_->watcher->begin(what);
  if (counted) {
    ++guard_->collectives;
    guard_->bytes += bytes;
  }
  Pending inner;
  try {
    inner = call();
  } catch (const c10::DistBackendError&) {  // NCCL reports a lost connection here
    if (!guard_->watcher) throw;
    guard_->watcher->transport_failed(what, message_of(std::current_exception()));
    if (const auto fault = guard_->watcher->fault()) throw Error(*fault);
    throw;
  }
  return host_waits_ && guard_->watcher ? GuardedWork::follow(inner, guard_, what, running_) : inner;
}

Pending GuardedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return start("broadcast", bytes_of(tensors), [&] { return inner_->broadcast(tensors, options); });
}
Pending GuardedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return start("all-reduce", bytes_of(tensors), [&] { return inner_->allreduce(tensors, options); });
}
Pending GuardedBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  return start("sparse all-reduce", 0, [&] { return inner_->allreduce_sparse(tensors, options); });
}
Pending GuardedBackend::allreduce_coalesced(Tensors& tensors,
                                            const c10d::AllreduceCoalescedOptions& options) {
  return start("all-reduce", bytes_of(tensors),
               [&] { return inner_->allreduce_coalesced(tensors, options); });
}
Pending GuardedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return start("reduce", bytes_of(tensors), [&] { return inner_->reduce(tensors, options); });
}
Pending GuardedBackend::allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  return start("all-gather", bytes_of(inputs), [&] { return inner_->allgather(outputs, inputs, options); });
}
Pending GuardedBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                        const c10d::AllgatherOptions& options) {
  return start("all-gather", bytes_of(input),
               [&] { return inner_->_allgather_base(output, input, options); });
}
Pending GuardedBackend::allgather_coalesced(Lists& outputs, Tensors& inputs,
                                            const c10d::AllgatherOptions& options) {
  return start("all-gather", bytes_of(inputs),
               [&] { return inner_->allgather_coalesced(outputs, inputs, options); });
}
Pending GuardedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::AllgatherOptions& options) {
  return start("all-gather", bytes_of(inputs),
               [&] { return inner_->allgather_into_tensor_coalesced(outputs, inputs, options); });
}
Pending GuardedBackend::gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  return start("gather", bytes_of(inputs), [&] { return inner_->gather(outputs, inputs, options); });
}
Pending GuardedBackend::scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) {
  return start("scatter", bytes_of(outputs), [&] { return inner_->scatter(outputs, inputs, options); });
}
Pending GuardedBackend::reduce_scatter(Tensors& outputs, Lists& inputs,
                                       const c10d::ReduceScatterOptions& options) {
  return start("reduce-scatter", bytes_of(inputs.at(0)),
               [&] { return inner_->reduce_scatter(outputs, inputs, options); });
}
Pending GuardedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::ReduceScatterOptions& options) {
  return start("reduce-scatter", bytes_of(input),
               [&] { return inner_->_reduce_scatter_base(output, input, options); });
}
Pending GuardedBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                        const c10d::ReduceScatterOptions& options) {
  return start("reduce-scatter", bytes_of(inputs),
               [&] { return inner_->reduce_scatter_tensor_coalesced(outputs, inputs, options); });
}
Pending GuardedBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                      std::vector<int64_t>& output_sizes, std::vector<int64_t>& input_sizes,
                                      const c10d::AllToAllOptions& options) {
  return start("all-to-all", bytes_of(input),
               [&] { return inner_->alltoall_base(output, input, output_sizes, input_sizes, options); });
}
Pending GuardedBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  return start("all-to-all", bytes_of(inputs), [&] { return inner_->alltoall(outputs, inputs, options); });
}
// Sending between two ranks has no future to follow: the transport's own work ends it, at its timeout at
// the latest.
Pending GuardedBackend::send(Tensors& tensors, int to, int tag) {
  return inner_->send(tensors, to, tag);
}
Pending GuardedBackend::recv(Tensors& tensors, int from, int tag) {
  return inner_->recv(tensors, from, tag);
}
Pending GuardedBackend::recvAnysource(Tensors& tensors, int tag) {
  return inner_->recvAnysource(tensors, tag);
}
Pending GuardedBackend::barrier(const c10d::BarrierOptions& options) {
  return start("barrier", -1, [&] { return inner_->barrier(options); });
}

}  // namespace palimpsest::distributed
