#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::testing {

/// The transport of a process group inside this process. A collective is complete when it returns.
class LocalBackend : public c10d::Backend {
 public:
  LocalBackend(int rank, int size) : c10d::Backend(rank, size) {}
  const std::string getBackendName() const override { return "local"; }

  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& all, at::Tensor& mine,
                                                 const c10d::AllgatherOptions&) override {
    const auto parts = exchange(mine);
    const at::Tensor out = all.view({getSize(), -1});
    for (int rank = 0; rank < getSize(); ++rank) out[rank].copy_(parts[static_cast<std::size_t>(rank)]);
    return c10::make_intrusive<DoneWork>();
  }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    const auto parts = exchange(tensors[0]);
    tensors[0].zero_();
    for (const at::Tensor& part : parts) tensors[0].add_(part);
    return c10::make_intrusive<DoneWork>();
  }

 private:
  class DoneWork : public c10d::Work {
   public:
    bool wait(std::chrono::milliseconds) override { return true; }
    bool isCompleted() override { return true; }
    bool isSuccess() const override { return true; }
  };

  /// Returns copies of what all ranks have handed in, in their order.
  virtual std::vector<at::Tensor> exchange(const at::Tensor& mine) = 0;
};

/// One rank of a process group, which operators find by its name while this object lives.
class LocalGroup {
 public:
  LocalGroup(std::string name, c10::intrusive_ptr<LocalBackend> backend)
      : name_(std::move(name)),
        group_(c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(),
                                                       backend->getRank(), backend->getSize())) {
    group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, std::move(backend));
    group_->setGroupName(name_);
    c10d::register_process_group(name_, group_);  // holds a weak reference
  }
  ~LocalGroup() { c10d::unregister_process_group(name_); }
  LocalGroup(const LocalGroup&) = delete;
  LocalGroup& operator=(const LocalGroup&) = delete;

  const std::string& name() const { return name_; }

 private:
  std::string name_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace palimpsest::testing
