#pragma once

#include "tests/support/local_group.h"

#include <atomic>
#include <barrier>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
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
          body(rank, name(rank));
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
          ranks.failed_ = true;
        }
        ranks.barrier_.arrive_and_drop();
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& error : errors)
      if (error && !is_consequence(error)) std::rethrow_exception(error);
  }

 private:
  struct Gone : std::runtime_error {
    Gone() : std::runtime_error("another rank has failed") {}
  };

  class ThreadBackend : public LocalBackend {
   public:
    ThreadBackend(ThreadRanks& ranks, int rank, int size) : LocalBackend(rank, size), ranks_(ranks) {}

   private:
    std::vector<at::Tensor> exchange(const at::Tensor& mine) override {
      return ranks_.exchange(getRank(), mine);
    }

    ThreadRanks& ranks_;
  };

  explicit ThreadRanks(int size) : barrier_(size), slots_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank)
      groups_.push_back(
          std::make_unique<LocalGroup>(name(rank), c10::make_intrusive<ThreadBackend>(*this, rank, size)));
  }

  static std::string name(int rank) { return "thread_rank_" + std::to_string(rank); }
  static bool is_consequence(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return std::string(e.what()).find(Gone().what()) != std::string::npos;
    }
  }

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
  std::vector<std::unique_ptr<LocalGroup>> groups_;
};

}  // namespace palimpsest::testing
