#pragma once

#include "palimpsest/distributed/process_group.h"

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// Data parallel training: each rank has a copy of the network and computes the gradients of its share of the
/// batch; gradients are averaged over the ranks while backward still runs, by c10d::Reducer.
///
///   distributed::DataParallel parallel(group, *net);         // all ranks have the weights of rank 0
///   for (const auto& batch : share_of_this_rank) {
///     sgd.zero_grad();
///     auto loss = cross_entropy(net(batch.images), batch.labels);
///     parallel.prepare(loss);                                // before each backward
///     loss.backward();                                       // gradients are averages when it returns
///     sgd.step();                                            // the same step on all ranks
///   }
///
/// Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020.
namespace palimpsest::distributed {

/// The type in which gradients travel. kF16 and kBF16 halve the bytes of f32. A bucket is divided by the
/// number of ranks in its own type, then rounded to 16 bits, so that sums do not overflow unless an average
/// would; the sum is formed in 16 bits. Parameters and gradients keep their type.
enum class Compression { kNone, kF16, kBF16 };

struct DataParallelOptions {
  /// Gradients are sent in buckets of about so many bytes, beginning with the last layers. Larger buckets:
  /// fewer collectives; smaller ones: communication begins earlier. PyTorch's defaults.
  int64_t bucket_bytes = int64_t{25} << 20;
  int64_t first_bucket_bytes = int64_t{1} << 20;  ///< of the first bucket, which can be sent early
  /// Some parameters get no gradient in some steps, perhaps others on each rank: prepare() then searches
  /// the graph, and one more collective per step finds which parameters no rank has used; these keep the
  /// gradient that they have. false: each backward must reach each parameter.
  bool find_unused_parameters = false;
  Compression compression = Compression::kNone;
};

/// Averages the gradients of a module over the ranks of a group.
///
/// Works with torch::optim, gradients that zero_grad sets to none or to zero, memory::recompute, parameters
/// of several dtypes and devices, and frozen parameters (requires_grad = false at the constructor; later
/// changes are not seen). Gradients lie in the memory of the buckets: there is no
/// second copy of them.
///
/// The same bits: all ranks have the same bits, and so has every run with the same number of ranks: buckets
/// never change (PyTorch's change after the first step, which a resumed run would show in its last bits).
///
/// Running statistics are not touched by a step: with normalization that is synchronized over the group
/// they are equal on all ranks; otherwise each rank has those of its own share, as nothing in training
/// depends on them. Call broadcast_buffers() before evaluation or a checkpoint.
class DataParallel {
 public:
  /// Compares the names, shapes, dtypes and requires_grad of all parameters and buffers with rank 0's, then
  /// overwrites parameters and buffers with rank 0's. `group` must outlive this object. Collective.
  /// Throws Error(kUsage) on all ranks if the networks differ: it names the first difference and two ranks;
  /// and for bucket sizes below 1.
  DataParallel(Group& group, torch::nn::Module& module, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Announces a backward pass from these outputs (the loss, as a rule). Call it after forward, before each
  /// backward, on all ranks. Without it the gradients are not averaged in that backward pass, and nothing reports it;
  /// within no_sync() it has no effect. Forward and backward alternate.
  /// Throws Error(kUsage) if the last backward reached only some of the parameters: the message names some
  /// of the missing parameters (find_unused_parameters is the way out).
  void prepare(const std::vector<at::Tensor>& outputs);
  void prepare(const at::Tensor& loss);

  /// While it lives, gradients only accumulate on each rank, without communication. The next backward
  /// outside adds to them, and averages the sum:
  ///   { const auto quiet = parallel.no_sync(); loss_of(first_half).backward(); }
  ///   auto loss = loss_of(second_half); parallel.prepare(loss); loss.backward();
  class [[nodiscard]] NoSync {
   public:
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class DataParallel;
    explicit NoSync(DataParallel& parallel);
    DataParallel& parallel_;
    bool outer_;
  };
  NoSync no_sync();

  /// Returns the factor for the loss of a rank with `local_count` of `total_count` samples (pixels, for
  /// segmentation), local_count * size / total_count. The average of the ranks' means is the mean over all
  /// samples only if the shares are equal; multiply the mean of each rank by this factor and it is always.
  /// A rank with no sample runs backward all the same, of a loss of 0 times the sum of its outputs.
  double loss_factor(int64_t local_count, int64_t total_count) const;

  /// Overwrites the module's buffers (running statistics, counters) with those of rank 0. Collective.
  void broadcast_buffers();

  int64_t bucket_count() const;  ///< collectives per step, without that of find_unused_parameters; 0 if alone
  int64_t bytes_per_step() const;  ///< that one rank puts into these collectives, after compression

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace palimpsest::distributed
