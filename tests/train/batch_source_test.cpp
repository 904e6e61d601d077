#include "palimpsest/train/batch_source.h"

#include "palimpsest/io/atomic_file.h"
#include "palimpsest/train/trainer.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>

namespace palimpsest::train {
namespace {

using namespace testing;

/// Batches of noise without a data set: the batch of a step is a function of (epoch, position).
class NoiseBatches : public BatchSource {
 public:
  int64_t batches() const override { return 3; }
  void start_epoch(int64_t epoch, int64_t first_batch) override { epoch_ = epoch, next_ = first_batch; }
  std::optional<data::Batch> next() override {
    if (next_ == batches()) return std::nullopt;
    Random random = Random::stream(seed(), static_cast<uint64_t>(epoch_), static_cast<uint64_t>(next_++));
    const at::Tensor images = at::empty({batch_size(), 3, 4, 4});
    float* values = images.data_ptr<float>();
    for (int64_t i = 0; i < images.numel(); ++i) values[i] = static_cast<float>(random.uniform(-1, 1));
    return data::Batch{images, images.argmax(1), {}};
  }
  int64_t batch_size() const override { return 2; }
  uint64_t seed() const override { return 7; }

 private:
  int64_t epoch_ = 0, next_ = 0;
};

TEST(BatchSource, OneOfTheUsersTrainsAndResumesBitExactly) {
  const TemporaryFolder folder;
  TrainerOptions options;
  options.epochs = 2;
  options.quiet = true;
  const std::atomic<int> stop{0};
  const auto run = [&](const std::string& name, int64_t steps, bool resume) {
    at::manual_seed(1);
    const torch::nn::Sequential net(torch::nn::Conv2d(3, 8, 1), torch::nn::ReLU(),
                                    torch::nn::Conv2d(8, 3, 1));
    NoiseBatches noise;
    options.output = folder / name;
    options.max_steps = steps;
    options.resume = resume;
    return train(net, noise, &noise, options, stop);
  };
  EXPECT_EQ(run("unbroken", 0, false).evaluations.size(), 2u);
  run("broken", 2, false);
  run("broken", 0, true);
  EXPECT_TRUE(io::read_file(folder / "unbroken" / "checkpoint.safetensors") ==
              io::read_file(folder / "broken" / "checkpoint.safetensors"));
}

TEST(BatchSource, ALoadersBatchesAreTheLoaders) {
  data::Loader loader(std::make_shared<BrightestColor>(20, 6), loader_options(4));
  data::Loader twin(std::make_shared<BrightestColor>(20, 6), loader_options(4));
  LoaderBatches source(loader);
  EXPECT_EQ(source.batches(), 5);
  EXPECT_EQ(source.batch_size(), 4);
  EXPECT_EQ(source.seed(), twin.options().seed);
  source.start_epoch(2, 3);
  twin.start_epoch(2, 3);
  int64_t batches = 0;
  while (const auto batch = source.next()) {
    EXPECT_TRUE(batch->images.equal(twin.next()->images));
    ++batches;
  }
  EXPECT_EQ(batches, 2) << "of five, from the fourth on";
}

}  // namespace
}  // namespace palimpsest::train
