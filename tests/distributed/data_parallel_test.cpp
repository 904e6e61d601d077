#include "palimpsest/distributed/data_parallel.h"
#include "palimpsest/memory/recompute.h"
#include "tests/distributed/ranks.h"
#include "tests/support/expect_error.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest::distributed {
namespace {

using palimpsest::testing::expect_error;
using testing::common_result;
using testing::exact;
using testing::Place;
using testing::RankBody;
using testing::run_ranks;

/// A small convolutional network of libtorch's layers; GroupNorm, because its statistics do not span the
/// batch.
struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(uint64_t seed, int64_t width = 8) {
    torch::manual_seed(seed);
    conv1 = register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 3).padding(1)));
    norm = register_module("norm", torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, width)));
    conv2 = register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 6, 3)));
    fc = register_module("fc", torch::nn::Linear(6, 5));
    unused = register_module("unused", torch::nn::Linear(6, 5));
    steps = register_buffer("steps", torch::full({1}, static_cast<double>(seed)));
    to(at::kDouble);
    for (auto& p : unused->parameters()) p.set_requires_grad(false);
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto middle = [conv = conv2, norm = norm](const at::Tensor& h) {
      auto n = norm;
      auto c = conv;
      return c(n(h).relu()).relu();
    };
    const at::Tensor h = conv1(x);
    const at::Tensor features = (recompute ? memory::recompute(middle, h) : middle(h)).mean({2, 3});
    return use_other ? unused(features) : fc(features);
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Linear fc{nullptr}, unused{nullptr};
  at::Tensor steps;
  bool recompute = false, use_other = false;
};
TORCH_MODULE(SmallNet);

constexpr int64_t kBatch = 12;

struct Batch {
  at::Tensor x, target;
};

/// The whole batch of a step, the same on all ranks.
Batch batch_of(int64_t step) {
  torch::manual_seed(1000 + static_cast<uint64_t>(step));
  return {torch::randn({kBatch, 3, 6, 6}, at::kDouble), torch::randint(0, 5, {kBatch}, at::kLong)};
}

/// The samples of one rank: unequal shares, of which the last rank has none if `empty_last`.
Batch share_of(const Batch& all, int rank, int size, bool empty_last) {
  std::vector<int64_t> begins;
  const int filled = empty_last ? size - 1 : size;
  for (int r = 0; r <= size; ++r)
    begins.push_back(r >= filled ? kBatch : r * (kBatch / size) - (r > 0 ? 1 : 0));
  return {all.x.slice(0, begins[rank], begins[rank + 1]),
          all.target.slice(0, begins[rank], begins[rank + 1])};
}

at::Tensor mean_loss(SmallNet& net, const Batch& batch) {
  const at::Tensor y = net(batch.x);
  return batch.target.numel() > 0 ? torch::cross_entropy_loss(y, batch.target) : y.sum() * 0;
}

torch::optim::SGD sgd_for(SmallNet& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

double distance(SmallNet& a, SmallNet& b) {
  double worst = 0;
  const auto left = a->parameters(), right = b->parameters();
  for (std::size_t i = 0; i < left.size(); ++i)
    worst = std::max(worst, (left[i] - right[i]).abs().max().item<double>());
  return worst;
}

std::string bits_of(SmallNet& net) {
  std::string text;
  for (const auto& p : net->parameters()) text += exact(p.sum()) + " ";
  return text;
}

/// Trains a copy of the network on the whole batch, in this process alone.
void train_alone(SmallNet& net, int steps) {
  auto sgd = sgd_for(net);
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    mean_loss(net, batch_of(step)).backward();
    sgd.step();
  }
}

/// The argument is a list of words that switch variants on.
const RankBody kTrain{
    "train", [](const Place& place) {
      const auto has = [&](const char* word) { return place.argument.find(word) != std::string::npos; };
      constexpr int kSteps = 50;
      Group group(place.launch, place.options());
      const int rank = group.rank(), size = group.size();

      DataParallelOptions options;
      if (has("small-buckets")) options.bucket_bytes = options.first_bucket_bytes = 1000;
      if (has("find-unused")) options.find_unused_parameters = true;
      if (has("f16")) options.compression = Compression::kF16;
      if (has("bf16")) options.compression = Compression::kBF16;
      SmallNet net(static_cast<uint64_t>(rank + 3));
      if (has("recompute")) net->recompute = true;
      DataParallel parallel(group, *net, options);
      if (net->steps.item<double>() != 3) return std::string("the buffer is not that of rank 0");
      auto sgd = sgd_for(net);

      const Traffic before = group.traffic();
      for (int step = 0; step < kSteps; ++step) {
        const Batch mine = share_of(batch_of(step), rank, size, has("empty"));
        const double factor = parallel.loss_factor(mine.x.size(0), kBatch);
        sgd.zero_grad(/*set_to_none=*/!has("zero-in-place"));
        if (has("accumulate")) {
          const int64_t half = mine.x.size(0) / 2;
          const Batch first{mine.x.slice(0, 0, half), mine.target.slice(0, 0, half)};
          const Batch second{mine.x.slice(0, half), mine.target.slice(0, half)};
          const double share = static_cast<double>(half) / static_cast<double>(mine.x.size(0));
          {
            const auto quiet = parallel.no_sync();
            const Traffic start = group.traffic();
            auto loss = mean_loss(net, first) * (factor * share);
            parallel.prepare(loss);
            loss.backward();
            if (group.traffic() != start) return std::string("a collective ran in no_sync");
          }
          auto loss = mean_loss(net, second) * (factor * (1 - share));
          parallel.prepare(loss);
          loss.backward();
        } else {
          auto loss = mean_loss(net, mine) * factor;
          parallel.prepare(loss);
          loss.backward();
        }
        sgd.step();
      }
      const Traffic during = group.traffic() - before;
      const int64_t extra = has("find-unused") ? kSteps : 0;
      if (during.collectives != kSteps * parallel.bucket_count() + extra)
        return fmt::format("{} collectives for {} buckets", during.collectives, parallel.bucket_count());
      if (!extra && during.bytes != kSteps * parallel.bytes_per_step())
        return fmt::format("{} bytes, not {} per step", during.bytes, parallel.bytes_per_step());

      SmallNet alone(3);
      train_alone(alone, kSteps);
      const double off = distance(net, alone);
      return fmt::format("{} buckets, {} bytes, off by {:.0e}, {}", parallel.bucket_count(),
                         parallel.bytes_per_step(), off, bits_of(net));
    }};

/// Runs a variant and expects equal bits on all ranks. Returns the distance from one process with the whole
/// batch.
double distance_of(int size, const std::string& words, const std::string& buckets = "") {
  SCOPED_TRACE(fmt::format("{} ranks, {}", size, words));
  const std::string text = common_result(run_ranks("train", size, {.argument = words}));
  EXPECT_EQ(text.rfind(buckets, 0), 0U) << text;
  const auto at = text.find("off by ");
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos ? 1 : std::stod(text.substr(at + 7));
}

constexpr double kSameTrainingF64 = 1e-10;

TEST(DataParallel, TrainsAsOneProcessWithTheWholeBatch) {
  for (const int size : {2, 3, 4}) EXPECT_LT(distance_of(size, "plain", "1 buckets"), kSameTrainingF64);
  EXPECT_LT(distance_of(3, "empty small-buckets", "2 buckets"), kSameTrainingF64);
  EXPECT_LT(distance_of(2, "zero-in-place small-buckets"), kSameTrainingF64);
}

TEST(DataParallel, AccumulatesWithoutCommunication) {
  EXPECT_LT(distance_of(2, "accumulate"), kSameTrainingF64);
  EXPECT_LT(distance_of(2, "accumulate zero-in-place small-buckets"), kSameTrainingF64);
}

TEST(DataParallel, ReducesWhileASegmentRunsAgain) {
  EXPECT_LT(distance_of(2, "recompute small-buckets"), kSameTrainingF64);
}

TEST(DataParallel, FindsThatAllParametersAreUsed) {
  EXPECT_LT(distance_of(2, "find-unused"), kSameTrainingF64);
}

TEST(DataParallel, CompressesGradients) {
  for (const char* type : {"f16", "bf16"}) {
    const double off = distance_of(2, type);
    EXPECT_LT(off, 0.05) << type;
    EXPECT_GT(off, kSameTrainingF64) << type << " seems not to be used";
  }
}

/// The ranks use different branches; the gradients of what a rank has not used count as zero.
const RankBody kBranches{
    "branches", [](const Place& place) {
      Group group(place.launch, place.options());
      SmallNet net(1);
      for (auto& p : net->unused->parameters()) p.set_requires_grad(true);
      DataParallel parallel(group, *net, {.find_unused_parameters = true});
      std::string text;
      for (int step = 0; step < 4; ++step) {
        net->zero_grad();
        // Even steps: both branches, on different ranks. Odd steps: no rank uses the second.
        net->use_other = step % 2 == 0 && group.rank() == 1;
        auto loss = mean_loss(net, batch_of(step));
        parallel.prepare(loss);
        loss.backward();
        const at::Tensor other = net->unused->weight.grad();
        text += fmt::format(
            "{} {} {} ", exact(net->conv1->weight.grad().sum()), exact(net->fc->weight.grad().sum()),
            !other.defined() || other.abs().max().item<double>() == 0 ? "no gradient" : exact(other.sum()));
      }
      return text;
    }};

TEST(DataParallel, AveragesOfDifferentBranches) {
  const std::string text = common_result(run_ranks("branches", 2));
  EXPECT_NE(text.find("no gradient"), std::string::npos) << text;
}

const RankBody kForgotten{"forgotten", [](const Place& place) {
                            std::optional<Error> noticed;
                            {
                              Group group(place.launch, place.options());
                              SmallNet net(1);
                              for (auto& p : net->unused->parameters()) p.set_requires_grad(true);
                              try {
                                DataParallel parallel(group, *net);
                                for (int step = 0; step < 2; ++step) {
                                  auto loss = mean_loss(net, batch_of(step));
                                  parallel.prepare(loss);
                                  loss.backward();
                                }
                              } catch (const Error& error) {
                                noticed = error;  // thrown at once, it would end the other rank's step
                              }
                            }
                            if (noticed) throw *noticed;
                            return std::string("not noticed");
                          }};

TEST(DataParallel, NamesParametersThatBackwardDidNotReach) {
  for (const auto& outcome : run_ranks("forgotten", 2)) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_EQ(outcome.error->kind(), ErrorKind::kUsage);
    for (const char* part : {"unused.weight", "unused.bias", "find_unused_parameters"})
      EXPECT_NE(outcome.message().find(part), std::string::npos) << outcome.message();
  }
}

const RankBody kArchitectures{"architectures", [](const Place& place) {
                                Group group(place.launch, place.options());
                                SmallNet net(1, place.launch.rank == 1 ? 4 : 8);
                                const DataParallel parallel(group, *net);
                                return std::string("accepted");
                              }};

TEST(DataParallel, RefusesDifferentNetworks) {
  for (const auto& outcome : run_ranks("architectures", 3)) {
    ASSERT_TRUE(outcome.error) << outcome.message();
    EXPECT_EQ(outcome.error->kind(), ErrorKind::kUsage);
    EXPECT_EQ(outcome.message(),
              "the networks of rank 0 and rank 1 differ: 'parameter conv1.weight: Double [8, 3, 3, 3]' and "
              "'parameter conv1.weight: Double [4, 3, 3, 3]'");
  }
}

/// Rank 1 lays its convolutions out as channels-last.
const RankBody kLayouts{"layouts", [](const Place& place) {
                          Group group(place.launch, place.options());
                          SmallNet net(1);
                          if (group.rank() == 1)
                            for (at::Tensor& p : net->parameters())
                              if (p.dim() == 4) p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
                          const DataParallel parallel(group, *net);
                          return std::string("accepted");
                        }};

TEST(DataParallel, RefusesNetworksInDifferentLayouts) {
  for (const auto& outcome : run_ranks("layouts", 2))
    EXPECT_EQ(outcome.message(),
              "the networks of rank 0 and rank 1 differ: 'parameter conv1.weight: Double [8, 3, 3, 3]' and "
              "'parameter conv1.weight: Double [8, 3, 3, 3] with strides [27, 1, 9, 3]'");
}

/// Rank 1 is killed by a hook in the middle of its backward pass.
const RankBody kKilledInBackward{
    "killed_in_backward", [](const Place& place) {
      Group group(place.launch, place.options());
      SmallNet net(1);
      DataParallel parallel(group, *net, {.bucket_bytes = 1000, .first_bucket_bytes = 1000});
      for (int step = 0; step < 5; ++step) {
        auto loss = mean_loss(net, batch_of(step));
        if (step == 2 && group.rank() == 1)
          net->conv1->weight.register_hook([](const at::Tensor&) { ::kill(::getpid(), SIGKILL); });
        parallel.prepare(loss);
        loss.backward();
      }
      return std::string("all steps");
    }};

TEST(DataParallel, EndsBackwardIfARankIsKilled) {
  const auto outcomes = run_ranks("killed_in_backward", 2);
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  ASSERT_TRUE(outcomes[0].error) << outcomes[0].message();
  EXPECT_EQ(outcomes[0].error->kind(), ErrorKind::kPeer);
  for (const char* part : {"the gradients, bucket", "rank 1 of 2 is gone"})
    EXPECT_NE(outcomes[0].message().find(part), std::string::npos) << outcomes[0].message();
}

const RankBody kFailsInBackward{"fails_in_backward", [](const Place& place) {
                                  Group group(place.launch, place.options());
                                  SmallNet net(1);
                                  DataParallel parallel(group, *net, {.compression = Compression::kBF16});
                                  auto loss = mean_loss(net, batch_of(0));
                                  parallel.prepare(loss);
                                  if (group.rank() == 0) {
                                    group.fail("the loss is NaN", ErrorKind::kDiverged);
                                    return std::string("failed");
                                  }
                                  loss.backward();
                                  return std::string("done");
                                }};

TEST(DataParallel, EndsBackwardWithTheMessageOfAnotherRank) {
  const auto outcomes = run_ranks("fails_in_backward", 2);
  ASSERT_TRUE(outcomes[1].error) << outcomes[1].message();
  EXPECT_EQ(outcomes[1].error->kind(), ErrorKind::kDiverged);
  EXPECT_EQ(outcomes[1].message(), "rank 0 of 2: the loss is NaN");
}

TEST(DataParallel, OfOneRankSendsNothing) {
  Group group(Launch{}, {.name = "data-parallel-alone"});
  SmallNet net(3), alone(3);
  train_alone(alone, 3);
  DataParallel parallel(group, *net, {.compression = Compression::kF16});
  EXPECT_EQ(parallel.bucket_count(), 0);
  EXPECT_EQ(parallel.bytes_per_step(), 0);
  auto sgd = sgd_for(net);
  const Traffic before = group.traffic();
  for (int step = 0; step < 3; ++step) {
    sgd.zero_grad();
    auto loss = mean_loss(net, batch_of(step));
    parallel.prepare(loss);
    loss.backward();
    sgd.step();
  }
  EXPECT_EQ(group.traffic(), before);
  EXPECT_EQ(distance(net, alone), 0);
  parallel.broadcast_buffers();
}

TEST(DataParallel, AcceptsAModuleWithoutGradients) {
  Group group(Launch{}, {.name = "no-gradients"});
  torch::nn::Flatten flatten;
  DataParallel parallel(group, *flatten);
  parallel.prepare(torch::ones({}));
}

TEST(DataParallel, RefusesBadArguments) {
  Group group(Launch{}, {.name = "bad-arguments"});
  SmallNet net(1);
  expect_error(ErrorKind::kUsage, {"bucket_bytes", "at least 1", "0"},
               [&] { DataParallel(group, *net, {.bucket_bytes = 0}); });
  const DataParallel parallel(group, *net);
  EXPECT_EQ(parallel.loss_factor(3, 12), 0.25);
  expect_error(ErrorKind::kUsage, {"counts", "5", "4"}, [&] { (void)parallel.loss_factor(5, 4); });
  expect_error(ErrorKind::kUsage, {"counts", "0"}, [&] { (void)parallel.loss_factor(0, 0); });
}

}  // namespace
}  // namespace palimpsest::distributed
