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

/// A process group without other processes: each of its ranks has what this one has. Found by its name while
/// it lives.
class MirrorGroup {
 public:
  explicit MirrorGroup(int size)
      : name_("mirror_of_" + std::to_string(size)),
        group_(c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, size)) {
    group_->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                       c10::make_intrusive<MirrorBackend>(size));
    group_->setGroupName(name_);
    c10d::register_process_group(name_, group_);
  }
  ~MirrorGroup() { c10d::unregister_process_group(name_); }
  MirrorGroup(const MirrorGroup&) = delete;
  MirrorGroup& operator=(const MirrorGroup&) = delete;

  const std::string& name() const { return name_; }

 private:
  class DoneWork : public c10d::Work {
   public:
    bool wait(std::chrono::milliseconds) override { return true; }
    bool isCompleted() override { return true; }
    bool isSuccess() const override { return true; }
  };

  class MirrorBackend : public c10d::Backend {
   public:
    explicit MirrorBackend(int size) : c10d::Backend(0, size) {}
    const std::string getBackendName() const override { return "mirror"; }
    c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& all, at::Tensor& mine,
                                                   const c10d::AllgatherOptions&) override {
      all.view({getSize(), -1}).copy_(mine.expand({getSize(), mine.numel()}));
      return c10::make_intrusive<DoneWork>();
    }
    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                             const c10d::AllreduceOptions&) override {
      tensors[0].mul_(getSize());
      return c10::make_intrusive<DoneWork>();
    }
  };

  std::string name_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

}  // namespace palimpsest::testing
