#include "palimpsest/train/report/details.h"

#include "palimpsest/io/safetensors.h"
#include "tests/train/support.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace palimpsest::train {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;

EvaluationDetails sample_details() {
  EvaluationDetails details{30, 2, true, {"a", "\u00e9 \"quoted\""}, at::arange(6, at::kByte).view({2, 3}),
                            {}, {}};
  details.confusion = at::tensor({5, 1, 0, 7}, at::kLong).view({2, 2});
  details.pictures = {{"scene", at::arange(18, at::kByte).view({2, 3, 3}), at::zeros({2, 3}, at::kByte),
                       at::ones({2, 3}, at::kByte)}};
  return details;
}

TEST(EvaluationFile, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  const EvaluationDetails details = sample_details();
  write_evaluation(folder / "e", details);
  const EvaluationDetails read = read_evaluation(folder / "e");
  EXPECT_EQ(read.step, 30);
  EXPECT_EQ(read.epoch, 2);
  EXPECT_TRUE(read.segmentation);
  EXPECT_EQ(read.class_names, details.class_names);
  EXPECT_TRUE(at::equal(read.class_colors, details.class_colors));
  EXPECT_TRUE(at::equal(read.confusion, details.confusion));
  ASSERT_EQ(read.pictures.size(), 1u);
  EXPECT_EQ(read.pictures[0].name, "scene");
  EXPECT_TRUE(at::equal(read.pictures[0].image, details.pictures[0].image));
  EXPECT_TRUE(at::equal(read.pictures[0].truth, details.pictures[0].truth));
  EXPECT_TRUE(at::equal(read.pictures[0].prediction, details.pictures[0].prediction));
}

TEST(EvaluationFile, OtherContentsAreRefusedByName) {
  const TemporaryFolder folder;
  const auto refused = [&](const char* what, const std::function<void(io::Safetensors&)>& change) {
    write_evaluation(folder / "e", sample_details());
    io::Safetensors file = io::read_safetensors(folder / "e");
    change(file);
    io::write_safetensors(folder / "e", file);
    expect_error(ErrorKind::kCheckpoint, {what}, [&] { read_evaluation(folder / "e"); });
  };
  const auto tensor = [](io::Safetensors& file, const std::string& name) -> at::Tensor& {
    for (auto& [key, value] : file.tensors)
      if (key == name) return value;
    throw std::logic_error(name);
  };
  refused("'step'", [](auto& file) { file.metadata.erase("step"); });
  refused("must be a whole number, got '3x'", [](auto& file) { file.metadata["epoch"] = "3x"; });
  refused("'class_names' must be a JSON list", [](auto& file) { file.metadata["class_names"] = "[1]"; });
  refused("class_colors for each of 3",
          [](auto& file) { file.metadata["class_names"] = R"(["a","b","c"])"; });
  refused("confusion needs 2", [&](auto& file) { tensor(file, "confusion") = at::zeros({2, 3}, at::kLong); });
  refused("negative", [&](auto& file) { tensor(file, "confusion") = at::full({2, 2}, -1, at::kLong); });
  refused("'picture.1.image'", [](auto& file) { file.metadata["picture_names"] = R"(["a","b"])"; });
  refused("image of RGB",
          [&](auto& file) { tensor(file, "picture.0.image") = at::zeros({2, 3, 4}, at::kByte); });
  refused("size of its image",
          [&](auto& file) { tensor(file, "picture.0.truth") = at::zeros({3, 3}, at::kByte); });
}

TEST(StepMemoryFile, GivesBackWhatWasWritten) {
  const TemporaryFolder folder;
  write_step_memory(folder / "m",
                    {2, {{0.0, 10}, {0.5, 30}, {1.0, 20}}, {{0.0, "forward"}, {0.5, "backward"}}});
  const StepTimeline read = read_step_memory(folder / "m");
  EXPECT_EQ(read.step, 2);
  ASSERT_EQ(read.samples.size(), 3u);
  EXPECT_EQ(read.samples[1].seconds, 0.5);
  EXPECT_EQ(read.samples[1].current_bytes, 30);
  ASSERT_EQ(read.marks.size(), 2u);
  EXPECT_EQ(read.marks[1].name, "backward");
  expect_error(ErrorKind::kCheckpoint, {"needs the tensor 'seconds'"}, [&] {
    write_evaluation(folder / "e", {});
    read_step_memory(folder / "e");
  });
}

/// A batch of `count` images whose pixels are 0 before the normalization is undone.
data::Batch batch_of(int64_t count, int64_t height, int64_t width) {
  data::Batch batch;
  batch.images = at::zeros({count, 3, height, width});
  batch.targets = at::zeros({count, height, width}, at::kLong);
  for (int64_t i = 0; i < count; ++i) batch.names.push_back("image " + std::to_string(i));
  return batch;
}

TEST(PictureSampler, TakesPicturesThatAreSpreadOverTheSet) {
  ReportOptions options;
  options.mean = {0.2, 0.4, 0.6};
  options.std = {0.5, 0.5, 0.5};
  PictureSampler sampler(options, 10, 255);
  for (int i = 0; i < 2; ++i) {
    data::Batch batch = batch_of(5, 4, 6);
    batch.images[2].fill_(0.4);
    batch.targets[2][0][0] = 255;
    at::Tensor logits = at::zeros({5, 3, 2, 3});  // coarser than the images
    logits.select(1, 1).fill_(1);
    sampler.add(batch, logits);
  }
  const auto pictures = sampler.take();
  ASSERT_EQ(pictures.size(), 4u);  // images 0, 2, 5, 7
  EXPECT_EQ(pictures[1].name, "image 2");
  EXPECT_EQ(pictures[3].name, "image 2");
  EXPECT_TRUE(at::equal(pictures[0].image[3][5], at::tensor({51, 102, 153}, at::kByte)));
  EXPECT_TRUE(at::equal(pictures[1].image[3][5], at::tensor({102, 153, 204}, at::kByte)));
  EXPECT_EQ(pictures[1].truth[0][0].item<int>(), 255);
  EXPECT_TRUE(pictures[1].prediction.eq(1).all().item<bool>());
  EXPECT_EQ(pictures[1].prediction.sizes(), (at::IntArrayRef{4, 6}));
}

TEST(PictureSampler, ALargeImageIsReducedAndKeepsTheIdsOfItsClasses) {
  PictureSampler sampler({}, 1, 0);
  data::Batch batch = batch_of(1, 1024, 2048);
  batch.targets.narrow(2, 1024, 1024).fill_(7);
  sampler.add(batch, at::zeros({1, 8, 16, 32}));
  const EvaluationPicture picture = sampler.take().at(0);
  EXPECT_EQ(picture.image.sizes(), (at::IntArrayRef{256, 512, 3}));
  EXPECT_TRUE(picture.truth.narrow(1, 0, 256).eq(255).all().item<bool>());  // the ignore id is 0
  EXPECT_TRUE(picture.truth.narrow(1, 256, 256).eq(7).all().item<bool>());
}

TEST(PictureSampler, LabelledImagesHaveScalarsAndOtherInputsNoPicture) {
  PictureSampler sampler({}, 2, 255);
  data::Batch labelled = batch_of(2, 4, 4);
  labelled.targets = at::tensor({1, 2});
  sampler.add(labelled, at::eye(3).narrow(0, 0, 2));
  const auto pictures = sampler.take();
  ASSERT_EQ(pictures.size(), 2u);
  EXPECT_EQ(pictures[1].truth.item<int64_t>(), 2);
  EXPECT_EQ(pictures[1].prediction.item<int64_t>(), 1);
  PictureSampler other({}, 2, 255);
  labelled.images = at::zeros({2, 1, 4, 4});
  other.add(labelled, at::eye(3).narrow(0, 0, 2));
  EXPECT_TRUE(other.take().empty());
}

}  // namespace
}  // namespace palimpsest::train
