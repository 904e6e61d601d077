#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <barrier>
#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest::testing {

/// The ranks of a process group as threads of this process. Each rank has a group of its own name; a
/// collective waits for the other threads.
class ThreadRanks {
 public:
  /// Calls body(rank, name of the rank's group) on `size` threads, and rethrows the first exception. A rank
  /// that throws leaves the group: collectives of the others throw, too.
  template <class Body>
  static void run(int size, const Body& body) {
    ThreadRanks ranks(size);
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank)
      threads.emplace_back([&, rank] {
        try {
          body(rank, ranks.name(rank));
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
          ranks.failed_ = true;
        }
        ranks.barrier_.arrive_and_drop();
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& error : errors)
      if (error && !ranks.is_consequence(error)) std::rethrow_exception(error);
  }

 private:
  struct Gone : std::runtime_error {
    Gone() : std::runtime_error("another rank has failed") {}
  };

  /// A collective that is complete when it returns.
  class DoneWork : public c10d::Work {
   public:
    bool wait(std::chrono::milliseconds) override { return true; }
    bool isCompleted() override { return true; }
    bool isSuccess() const override { return true; }
  };

  class ThreadBackend : public c10d::Backend {
   public:
    ThreadBackend(ThreadRanks& ranks, int rank, int size) : c10d::Backend(rank, size), ranks_(ranks) {}
    const std::string getBackendName() const override { return "threads"; }

    c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& all, at::Tensor& mine,
                                                   const c10d::AllgatherOptions&) override {
      const auto parts = ranks_.exchange(getRank(), mine);
      at::Tensor out = all.view({getSize(), -1});
      for (int rank = 0; rank < getSize(); ++rank) out[rank].copy_(parts[static_cast<std::size_t>(rank)]);
      return c10::make_intrusive<DoneWork>();
    }
    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                             const c10d::AllreduceOptions&) override {
      const auto parts = ranks_.exchange(getRank(), tensors[0]);
      tensors[0].zero_();
      for (const at::Tensor& part : parts) tensors[0].add_(part);
      return c10::make_intrusive<DoneWork>();
    }

   private:
    ThreadRanks& ranks_;
  };

  explicit ThreadRanks(int size) : barrier_(size), slots_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      auto group =
          c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), rank, size);
      group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                        c10::make_intrusive<ThreadBackend>(*this, rank, size));
      group->setGroupName(name(rank));
      c10d::register_process_group(name(rank), group);
      groups_.push_back(std::move(group));  // the registry holds weak references
    }
  }
  ~ThreadRanks() {
    for (std::size_t rank = 0; rank < slots_.size(); ++rank)
      c10d::unregister_process_group(name(static_cast<int>(rank)));
  }

  static std::string name(int rank) { return "thread_rank_" + std::to_string(rank); }
  static bool is_consequence(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return std::string(e.what()).find(Gone().what()) != std::string::npos;
    }
  }

  /// Returns copies of what all ranks have handed in, in their order.
  std::vector<at::Tensor> exchange(int rank, const at::Tensor& mine) {
    slots_[static_cast<std::size_t>(rank)] = mine.clone();
    barrier_.arrive_and_wait();
    if (failed_) throw Gone();
    const std::vector<at::Tensor> all = slots_;
    barrier_.arrive_and_wait();
    if (failed_) throw Gone();
    for (const at::Tensor& part : all)
      if (part.sizes() != mine.sizes() || part.dtype() != mine.dtype())
        throw std::runtime_error("the ranks are in different collectives");
    return all;
  }

  std::barrier<> barrier_;
  std::atomic<bool> failed_{false};
  std::vector<at::Tensor> slots_;
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups_;
};

}  // namespace palimpsest::testing
