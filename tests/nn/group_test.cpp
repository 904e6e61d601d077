// Modules with statistics over a process group: ranks with parts of a batch, one of them empty, give what one
// process gives for the whole batch.
#include "palimpsest/memory/recompute.h"
#include "palimpsest/nn/batch_norm_act.h"
#include "palimpsest/nn/conv2d.h"
#include "palimpsest/nn/dense_block.h"
#include "palimpsest/nn/dense_transition.h"
#include "palimpsest/ops/group_traffic.h"
#include "tests/nn/dense_block_support.h"
#include "tests/support/thread_ranks.h"

#include <functional>
#include <memory>

namespace palimpsest::nn {
namespace {

using testing::ThreadRanks;

/// Images of each rank.
const std::vector<int64_t> kBatches{2, 0, 3};

/// A module and how it runs.
struct GroupCase {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const at::Tensor&)> forward;
};
using MakeGroupCase = std::function<GroupCase(const std::string& group)>;

struct GroupResults {
  at::Tensor z, dx;
  std::vector<at::Tensor> gradients, buffers;
};

at::Tensor part_of(const at::Tensor& whole, std::size_t rank) {
  int64_t first = 0;
  for (std::size_t r = 0; r < rank; ++r) first += kBatches[r];
  return whole.narrow(0, first, kBatches[rank]).contiguous(whole.suggest_memory_format());
}

GroupResults group_step(const GroupCase& c, const at::Tensor& values, const at::Tensor& dz) {
  const at::Tensor x = values.detach().clone(at::MemoryFormat::Preserve).requires_grad_();
  const at::Tensor z = c.forward(x);
  z.backward(dz);
  GroupResults results{z.detach(), x.grad(), {}, {}};
  for (const auto& p : c.module->parameters()) results.gradients.push_back(p.grad());
  for (const auto& b : c.module->buffers()) results.buffers.push_back(b.to(at::kDouble));
  return results;
}

/// Checks one step of all ranks against one process with the whole batch. Returns the collectives of a rank.
int64_t expect_one_big_batch(const MakeGroupCase& make, at::IntArrayRef image,
                             at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  std::vector<int64_t> shape{5};
  shape.insert(shape.end(), image.begin(), image.end());
  const auto made = [&](const std::string& group) {
    GroupCase c = make(group);
    c.module->to(torch::kFloat64);
    randomize(*c.module);
    return c;
  };
  const GroupCase alone = made("");
  const at::Tensor x = leaf(shape).detach().contiguous(format);
  at::Tensor dz = leaf(alone.forward(x).sizes(), 9).detach();
  const GroupResults whole = group_step(made(""), x, dz);
  std::vector<GroupCase> cases;
  for (std::size_t rank = 0; rank < kBatches.size(); ++rank)
    cases.push_back(made("thread_rank_" + std::to_string(rank)));
  std::vector<GroupResults> results(kBatches.size());
  ops::reset_group_traffic();
  ThreadRanks::run(static_cast<int>(kBatches.size()), [&](int rank, const std::string&) {
    const auto r = static_cast<std::size_t>(rank);
    results[r] = group_step(cases[r], part_of(x, r), part_of(dz, r));
  });
  const int64_t collectives = ops::group_traffic().collectives / static_cast<int64_t>(kBatches.size());
  for (std::size_t r = 0; r < kBatches.size(); ++r) {
    SCOPED_TRACE("rank " + std::to_string(r));
    EXPECT_EQ(results[r].z.sizes(), part_of(whole.z, r).sizes());
    if (kBatches[r] > 0) {
      EXPECT_LT(relative_error(results[r].z, part_of(whole.z, r)), kSameMaths);
      EXPECT_LT(relative_error(results[r].dx, part_of(whole.dx, r)), kSameMaths);
    }
    for (std::size_t i = 0; i < whole.buffers.size(); ++i) {
      EXPECT_LT(relative_error(results[r].buffers[i], whole.buffers[i]), kSameMaths) << "buffer " << i;
      EXPECT_TRUE(at::equal(results[r].buffers[i], results[0].buffers[i])) << "bits of buffer " << i;
    }
  }
  for (std::size_t i = 0; i < whole.gradients.size(); ++i) {
    at::Tensor sum = at::zeros_like(whole.gradients[i]);
    for (const GroupResults& r : results) sum += r.gradients[i];
    EXPECT_LT(relative_error(sum, whole.gradients[i]), kSameMaths) << "gradient " << i;
  }
  return collectives;
}

NormOptions norm_of(Strategy strategy, Activation activation, const std::string& group) {
  return {.strategy = strategy, .activation = activation, .group = group};
}

const std::vector<std::pair<Strategy, Activation>> kPairs{
    {Strategy::kStandard, Activation::kReLU},
    {Strategy::kCheckpoint, Activation::kReLU},
    {Strategy::kCheckpointNormalized, Activation::kReLU},
    {Strategy::kInplace1, Activation::kLeakyReLU},
    {Strategy::kInplace2, Activation::kLeakyReLU},
    {Strategy::kInplaceBit, Activation::kSiLU},
    {Strategy::kStoreY, Activation::kReLU}};

TEST(GroupNorm, EveryStrategyEqualsOneBigBatch) {
  for (const auto& [strategy, activation] : kPairs)
    for (const auto format : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
      SCOPED_TRACE(to_string(strategy));
      const auto make = [&, s = strategy, a = activation](const std::string& group) {
        auto norm = BatchNormAct(7, norm_of(s, a, group));
        return GroupCase{norm.ptr(), [norm](const at::Tensor& x) mutable { return norm->forward(x * 1); }};
      };
      EXPECT_EQ(expect_one_big_batch(make, {7, 4, 3}, format), 2);
    }
}

struct NormAndConvolutionImpl : torch::nn::Module {
  NormAndConvolutionImpl(const NormOptions& options, bool residual)
      : norm(register_module("norm", BatchNormAct(6, options))),
        conv(register_module("conv", Conv2d(torch::nn::Conv2dOptions(6, 6, 3).padding(1).bias(false),
                                            convolution_backend(options.strategy)))),
        residual(residual) {}
  at::Tensor forward(const at::Tensor& x) {
    if (!residual) return norm->forward_into(x * 1, conv);
    return norm->forward_residual(conv->forward(x), x);
  }
  BatchNormAct norm;
  Conv2d conv;
  bool residual;
};
TORCH_MODULE(NormAndConvolution);

TEST(GroupNorm, BeforeAConvolutionAndAtTheEndOfAResidualBlockEqualsOneBigBatch) {
  for (const bool residual : {false, true})
    for (const auto& [strategy, activation] : kPairs) {
      SCOPED_TRACE(to_string(strategy) + (residual ? ", residual" : ""));
      const auto make = [&, s = strategy, a = activation](const std::string& group) {
        auto block = NormAndConvolution(norm_of(s, a, group), residual);
        return GroupCase{block.ptr(), [block](const at::Tensor& x) mutable { return block->forward(x); }};
      };
      EXPECT_EQ(expect_one_big_batch(make, {6, 4, 3}, at::MemoryFormat::ChannelsLast), 2);
    }
}

TEST(GroupDenseBlock, EveryFormEqualsOneBigBatch) {
  for (const DenseStrategy form : kDenseForms)
    for (const bool pre_activation : {true, false}) {
      if (!pre_activation && form == DenseStrategy::kNaive) continue;
      SCOPED_TRACE(to_string(form) + (pre_activation ? ", pre" : ", post"));
      const auto make = [&](const std::string& group) {
        auto block = DenseBlock(
            small_block(form, norm_of(Strategy::kStoreY, Activation::kReLU, group), pre_activation));
        return GroupCase{block.ptr(), [block](const at::Tensor& x) mutable { return block->forward(x); }};
      };
      const int64_t collectives = expect_one_big_batch(make, {5, 6, 4});
      // Fused, the features of a layer have one gather for all of their readers; else each reader has its own.
      EXPECT_EQ(collectives, form == DenseStrategy::kFused && pre_activation ? 2 * (4 + 4 + 1) : 2 * (4 + 4));
    }
}

TEST(GroupDenseBlock, WithFrozenNormalizationsAmongOthersEqualsOneBigBatch) {
  for (const DenseStrategy form : kDenseForms) {
    SCOPED_TRACE(to_string(form));
    const auto make = [&](const std::string& group) {
      auto block = DenseBlock(small_block(form, norm_of(Strategy::kStoreY, Activation::kReLU, group)));
      set_mode(*block, Mode::kFrozenNorms);
      return GroupCase{block.ptr(), [block](const at::Tensor& x) mutable { return block->forward(x); }};
    };
    EXPECT_EQ(expect_one_big_batch(make, {5, 6, 4}), 2 * 5);  // of 8 normalizations 3 are frozen
  }
}

TEST(GroupDenseTransition, EqualsOneBigBatch) {
  for (const DenseStrategy form : kDenseForms) {
    SCOPED_TRACE(to_string(form));
    const auto make = [&](const std::string& group) {
      auto transition = DenseTransition(DenseTransitionOptions(6).out_channels(3).dense_strategy(form).norm(
          norm_of(Strategy::kStoreY, Activation::kReLU, group)));
      return GroupCase{transition.ptr(),
                       [transition](const at::Tensor& x) mutable { return transition->forward(x); }};
    };
    EXPECT_EQ(expect_one_big_batch(make, {6, 4, 6}), 2);
  }
}

TEST(GroupRecomputation, MakesNoSecondCollective) {
  // Segments in a segment: the inner one runs three times.
  const auto make = [](const std::string& group) {
    torch::nn::Sequential all(
        BatchNormAct(
            BatchNormActOptions(5, norm_of(Strategy::kStoreY, Activation::kReLU, group)).in_place(false)),
        Conv2d(torch::nn::Conv2dOptions(5, 5, 3).padding(1).bias(false)),
        BatchNormAct(5, norm_of(Strategy::kInplace2, Activation::kLeakyReLU, group)),
        DenseBlock(
            small_block(DenseStrategy::kCheckpoint, norm_of(Strategy::kStoreY, Activation::kReLU, group))));
    return GroupCase{
        all.ptr(), [all](const at::Tensor& x) {
          return memory::recompute(
              [all](const at::Tensor& y) mutable {
                const auto head = [all](const at::Tensor& h) mutable {
                  return all[2]->as<BatchNormActImpl>()->forward(
                      all[1]->as<Conv2dImpl>()->forward(all[0]->as<BatchNormActImpl>()->forward(h)));
                };
                return all[3]->as<DenseBlockImpl>()->forward(memory::recompute(head, y));
              },
              x);
        }};
  };
  EXPECT_EQ(expect_one_big_batch(make, {5, 4, 3}), 2 * (2 + 4 + 4));
}

TEST(GroupNorm, EvalModeAsksNobody) {
  auto norm = BatchNormAct(BatchNormActOptions(3).group("nobody"));
  norm->eval();
  const at::Tensor x = leaf({4, 3}).to(at::kFloat).detach();
  EXPECT_EQ(norm->forward(x * 1).sizes(), x.sizes());
  norm->train();
  EXPECT_THROW(norm->forward(x * 1), c10::Error);
}

}  // namespace
}  // namespace palimpsest::nn
