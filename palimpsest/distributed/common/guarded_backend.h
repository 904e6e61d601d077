#pragma once

#include "palimpsest/distributed/common/watcher.h"
#include "palimpsest/distributed/process_group.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest::distributed {

/// What the backends of a group share.
struct Guard {
  std::shared_ptr<Watcher> watcher;  // none for one rank alone
  std::atomic<int64_t> collectives{0}, bytes{0};
};

/// Passes collectives on to a backend of c10d, counts them, and ends them at a fault: whoever waits, in
/// wait() or on the future, gets the watcher's error. The host waits in Gloo's collectives (`host_waits`).
/// It does not wait in NCCL's, which are aborted at a fault.
class GuardedBackend : public c10d::Backend {
 public:
  using Pending = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<std::vector<at::Tensor>>;

  GuardedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Guard> guard, bool host_waits);
  ~GuardedBackend() override;

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void abort() override { inner_->abort(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  bool supportsCoalescing() const override { return inner_->supportsCoalescing(); }
  void startCoalescing() override { inner_->startCoalescing(); }
  Pending endCoalescing() override { return inner_->endCoalescing(); }

  Pending broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  Pending allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Pending allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  Pending allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  Pending reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  Pending allgather(Lists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  Pending _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  Pending allgather_coalesced(Lists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  Pending allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  Pending gather(Lists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  Pending scatter(Tensors& outputs, Lists& inputs, const c10d::ScatterOptions& options) override;
  Pending reduce_scatter(Tensors& outputs, Lists& inputs, const c10d::ReduceScatterOptions& options) override;
  Pending _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  Pending reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  Pending alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override;
  Pending alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  Pending send(Tensors& tensors, int to, int tag) override;
  Pending recv(Tensors& tensors, int from, int tag) override;
  Pending recvAnysource(Tensors& tensors, int tag) override;
  Pending barrier(const c10d::BarrierOptions& options) override;

 private:
  Pending start(const char* kind, int64_t bytes, const std::function<Pending()>& call);

  c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<Guard> guard_;
  const bool host_waits_;
  const std::shared_ptr<std::atomic<int>> running_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace palimpsest::distributed
