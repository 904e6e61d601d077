#include "palimpsest/train/views.h"

#include "palimpsest/memory/meter.h"
#include "palimpsest/train/evaluate.h"
#include "palimpsest/train/metrics.h"
#include "tests/train/support.h"
#include "tests/train/tiny.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace palimpsest::train {
namespace {

using namespace testing;

const TensorFormat kF64 = TensorFormat::parse("f64", false);

/// A segmentation network of stride 4 whose logits depend on their surroundings and on the window's edges.
class Strided : public nn::Model {
 public:
  explicit Strided(int64_t classes = 5)
      : conv1(register_module("conv1",
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).stride(2).padding(1)))),
        conv2(register_module(
            "conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(6, classes, 3).stride(2).padding(1)))) {}
  at::Tensor forward(const at::Tensor& images) override {
    return at::upsample_bilinear2d(coarse_logits(images), images.sizes().slice(2), false);
  }
  at::Tensor coarse_logits(const at::Tensor& images) override {
    seen.push_back(images.sizes().vec());
    return conv2(conv1(images).relu_()).mul_(8);
  }
  bool is_segmentation() const override { return true; }

  torch::nn::Conv2d conv1, conv2;
  std::vector<std::vector<int64_t>> seen;  // the shapes of the images
};

std::shared_ptr<Strided> make_strided(const TensorFormat& format = kF64, int64_t classes = 5) {
  at::manual_seed(3);
  auto network = std::make_shared<Strided>(classes);
  format.convert(*network);
  network->eval();
  return network;
}

at::Tensor random_image(int64_t height, int64_t width, at::ScalarType type = at::kDouble) {
  at::manual_seed(5);
  return at::randn({3, height, width}, type);
}

at::Tensor probabilities_of(const Network& network, const at::Tensor& image, const ViewOptions& options,
                            const TensorFormat& format = kF64) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> bands;
  int64_t rows = 0;
  for_each_band(network, image, options, format, [&](int64_t top, const at::Tensor& probabilities) {
    EXPECT_EQ(top, rows);
    rows += probabilities.size(1);
    bands.push_back(probabilities.clone());
  });
  return at::cat(bands, 1);
}

/// The same by libtorch's operators on whole images of at least 2 columns: its antialiased resize is wrong
/// for 1.
at::Tensor plain_average(Strided& network, const at::Tensor& image, const ViewOptions& options) {
  const at::NoGradGuard no_grad;
  const at::IntArrayRef size = image.sizes().slice(1);
  at::Tensor sum;
  for (const double scale : options.scales) {
    const std::vector<int64_t> scaled{std::llround(static_cast<double>(size[0]) * scale),
                                      std::llround(static_cast<double>(size[1]) * scale)};
    const at::Tensor x = scale < 1 ? at::_upsample_bilinear2d_aa(image.unsqueeze(0), scaled, false)
                                   : at::upsample_bilinear2d(image.unsqueeze(0), scaled, false);
    for (const bool flip : {false, true}) {
      if (flip && !options.flip) continue;
      const at::Tensor logits = network.coarse_logits(flip ? x.flip({3}) : x);
      at::Tensor p = at::upsample_bilinear2d(logits, size, false).softmax(1);
      if (flip) p = p.flip({3});
      sum = sum.defined() ? sum + p : p;
    }
  }
  return sum[0] / static_cast<double>(options.scales.size() * (options.flip ? 2 : 1));
}

TEST(Views, ScalesAndFlipAreTheAverageThatLibtorchComputes) {
  const auto network = make_strided();
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{31, 45}, {1, 7}, {64, 33}, {17, 3}})
    for (const bool flip : {false, true})
      for (const auto& scales : {std::vector<double>{1}, {0.5}, {1.75}, {0.6, 1, 1.25, 2.3}}) {
        const ViewOptions options{.scales = scales, .flip = flip};
        const at::Tensor image = random_image(height, width);
        EXPECT_LT(relative_error(probabilities_of(*network, image, options),
                                 plain_average(*network, image, options)),
                  kReorderedF64)
            << height << " x " << width << " at " << scales[0] << ", " << scales.size() << " scales";
      }
}

TEST(Views, AWindowAsLargeAsTheImageIsTheImage) {
  const auto network = make_strided();
  const at::Tensor image = random_image(23, 37);
  const ViewOptions whole{.scales = {0.8, 1.5}, .flip = true};
  for (const int64_t window : {56, 57, 1000}) {
    ViewOptions options = whole;
    options.window = window;
    EXPECT_TRUE(probabilities_of(*network, image, options).equal(probabilities_of(*network, image, whole)));
  }
}

/// The same by a plain loop over the windows at scale 1.
at::Tensor plain_windows(Strided& network, const at::Tensor& image, int64_t window, int64_t stride) {
  const at::NoGradGuard no_grad;
  const auto starts = [&](int64_t size) {
    std::vector<int64_t> all;
    for (int64_t at = 0; at + window < size; at += stride) all.push_back(at);
    all.push_back(size - window);
    return all;
  };
  // The weights of window k along an axis: they rise over the overlap with the window before it, and fall
  // over that with the window after it.
  const auto ramp = [&](const std::vector<int64_t>& all, std::size_t k) {
    at::Tensor result = at::ones({window}, at::kDouble);
    for (int64_t i = 0; i < window; ++i) {
      double value = 1;
      if (k > 0 && all[k - 1] + window > all[k])
        value = std::min(value,
                         (static_cast<double>(i) + 0.5) / static_cast<double>(all[k - 1] + window - all[k]));
      if (k + 1 < all.size() && all[k] + window > all[k + 1])
        value = std::min(value, (static_cast<double>(window - i) - 0.5) /
                                    static_cast<double>(all[k] + window - all[k + 1]));
      result[i] = value;
    }
    return result;
  };
  at::Tensor sum, weights = at::zeros({image.size(1), image.size(2)}, at::kDouble);
  const std::vector<int64_t> rows = starts(image.size(1)), columns = starts(image.size(2));
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t c = 0; c < columns.size(); ++c) {
      const int64_t y = rows[r], x = columns[c];
      const at::Tensor weight = ramp(rows, r).unsqueeze(1) * ramp(columns, c);
      const at::Tensor view = image.narrow(1, y, window).narrow(2, x, window).unsqueeze(0);
      const at::Tensor p = network.forward(view).softmax(1)[0];
      if (!sum.defined()) sum = at::zeros({p.size(0), image.size(1), image.size(2)}, at::kDouble);
      sum.narrow(1, y, window).narrow(2, x, window).add_(p * weight);
      weights.narrow(0, y, window).narrow(1, x, window).add_(weight);
    }
  return sum / weights;
}

TEST(Views, WindowsAreTheWeightedAverageOfAPlainLoop) {
  const auto network = make_strided();
  for (const auto& [height, width] : {std::pair<int64_t, int64_t>{31, 45}, {16, 16}, {17, 63}, {40, 16}})
    for (const auto& [window, stride] : {std::pair<int64_t, int64_t>{16, 16}, {16, 11}, {15, 4}, {13, 1}}) {
      const at::Tensor image = random_image(height, width);
      const ViewOptions options{.window = window, .stride = stride};
      EXPECT_LT(relative_error(probabilities_of(*network, image, options),
                               plain_windows(*network, image, window, stride)),
                kReorderedF64)
          << height << " x " << width << ", window " << window << ", stride " << stride;
    }
}

TEST(Views, ProbabilitiesAreDistributionsAtAnyScaleOfTheWindows) {
  const auto network = make_strided();
  const at::Tensor image = random_image(29, 50);
  const ViewOptions options{.scales = {0.3, 0.77, 1.9}, .flip = true, .window = 14, .stride = 5};
  const at::Tensor sums = probabilities_of(*network, image, options).sum(0);
  EXPECT_LT(relative_error(sums, at::ones_like(sums)), kReorderedF64);
}

TEST(Views, NoSeamShowsWhereWindowsMeet) {
  // Each window has scores of its own, as if the network were unsure of everything.
  at::manual_seed(1);
  const Network per_window(*make_strided(), [](const at::Tensor& images) {
    return at::randn({1, 2, 1, 1}, images.options()).mul(3).expand({1, 2, images.size(2), images.size(3)});
  });
  const at::Tensor image = random_image(40, 120);
  const ViewOptions options{.window = 40, .stride = 20};
  const at::Tensor p = probabilities_of(per_window, image, options);
  const double step = p.diff(1, 2).abs().max().item<double>(), all = (p.max() - p.min()).item<double>();
  EXPECT_GT(all, 0.1);
  EXPECT_LE(step, 1.0 / 20);  // a probability changes by at most 1 over the 20 pixels of the overlap
  // Three windows side by side on 100 pixels: the last one overlaps by 20.
  const at::Tensor narrow = image.narrow(2, 0, 100);
  const at::Tensor last =
      probabilities_of(per_window, narrow, {.window = 40, .stride = 40}).narrow(2, 45, 55);
  EXPECT_LE(last.diff(1, 2).abs().max().item<double>(), 1.0 / 20);
  const ViewOptions side_by_side{.window = 40, .stride = 40};
  EXPECT_GT(probabilities_of(per_window, image, side_by_side).diff(1, 2).abs().max().item<double>(),
            1.0 / 20);
}

TEST(Views, TheDefaultStrideIsTwoThirdsOfTheWindow) {
  const auto network = make_strided();
  const at::Tensor image = random_image(30, 47);
  EXPECT_TRUE(probabilities_of(*network, image, {.window = 16})
                  .equal(probabilities_of(*network, image, {.window = 16, .stride = 11})));
}

TEST(Views, EachWindowIsComputedOnceAndByItself) {
  const auto network = make_strided();
  const ViewOptions options{.scales = {1, 2}, .flip = true, .window = 16, .stride = 16};
  probabilities_of(*network, random_image(32, 48), options);
  EXPECT_EQ(network->seen.size(), 2u * (2 * 3 + 4 * 6));
  for (const auto& shape : network->seen) EXPECT_EQ(shape, (std::vector<int64_t>{1, 3, 16, 16}));
}

TEST(Views, MemoryDoesNotGrowWithTheHeightOfTheImage) {
  const TensorFormat format;
  const auto network = make_strided(format, 64);
  const at::NoGradGuard no_grad;
  for (const ViewOptions& options : {ViewOptions{.window = 64, .stride = 48},
                                     ViewOptions{.scales = {0.75, 1.5}, .flip = true, .window = 64}}) {
    const auto peak_of = [&](int64_t height) {
      const at::Tensor image = random_image(height, 256, at::kFloat);
      const memory::Meter meter;
      for_each_band(*network, image, options, format, [](int64_t, const at::Tensor&) {});
      return meter.peak_bytes() - meter.base_bytes();
    };
    const int64_t low = peak_of(256), high = peak_of(1024);  // 4 and 16 bands, 30 and 120 windows
    EXPECT_LE(high, low + low / 20);
    EXPECT_LT(high, int64_t{64} * 1024 * 256 * 4 / 3);  // all probabilities in f32
  }
}

TEST(Views, AnEvaluationNeedsABandOfTheImageOnly) {
  const TensorFormat format;
  const auto network = make_strided(format);
  const EvaluationOptions options{.format = format, .views = {.window = 64, .stride = 48}};
  const auto peak_of = [&](int64_t side) {
    auto loader_of_one = loader_options(1);
    loader_of_one.shuffle = false;
    data::Loader loader(std::make_shared<BrightestColor>(1, side), loader_of_one);
    LoaderBatches batches(loader);
    const memory::Meter meter;
    evaluate(*network, batches, options);
    return meter.peak_bytes() - meter.base_bytes();
  };
  // An image and its target have 20 bytes per pixel, twice while the batch is stacked.
  const int64_t least = peak_of(600), most = peak_of(1200);
  EXPECT_LE(most - least, 3 * 20 * (1200 * 1200 - 600 * 600));
}

TEST(Views, ResultsAreTheSameBitsForAnyBatchAndAgain) {
  const auto network = make_strided({});
  const auto evaluate_in = [&](int64_t batch) {
    auto o = loader_options(batch);
    o.shuffle = false;
    o.drop_last = false;
    data::Loader loader(std::make_shared<BrightestColor>(5, 21), o);
    LoaderBatches batches(loader);
    std::vector<at::Tensor> labels;
    EvaluationOptions options{.views = {.scales = {0.7, 1.3}, .flip = true, .window = 16}};
    options.labels = [&](const std::string& name, const at::Tensor& classes) {
      EXPECT_EQ(name, "noise/" + std::to_string(labels.size()));
      labels.push_back(classes);
    };
    return std::pair(evaluate(*network, batches, options), labels);
  };
  const auto [one, labels_of_one] = evaluate_in(1);
  for (const int64_t batch : {1, 4}) {
    const auto [other, labels] = evaluate_in(batch);
    EXPECT_EQ(one.loss, other.loss);
    EXPECT_EQ(one.confusion, other.confusion);
    expect_equal(labels_of_one, labels);
  }
}

TEST(Views, LossMetricsAndLabelsAreThoseOfTheAverage) {
  const auto network = make_strided();
  for (const bool bootstraps : {false, true}) {
    EvaluationOptions options{.format = kF64, .views = {.scales = {0.7, 1.3}, .flip = true}};
    if (bootstraps) options.loss = {.kind = "bootstrap", .bootstrap_share = 0.3};
    std::vector<at::Tensor> labels;
    options.labels = [&](const std::string&, const at::Tensor& classes) { labels.push_back(classes); };
    auto o = loader_options(2);
    o.shuffle = false;
    o.drop_last = false;
    data::Loader loader(std::make_shared<BrightestColor>(3, 19), o);
    LoaderBatches batches(loader);
    const EvaluationRecord record = evaluate(*network, batches, options);

    MetricsAccumulator metrics(true, 5, 255);
    double loss = 0;
    double counted = 0;
    loader.start_epoch(0);
    std::size_t image_number = 0;
    while (const auto batch = loader.next())
      for (int64_t i = 0; i < batch->images.size(0); ++i, ++image_number) {
        const at::Tensor p =
            plain_average(*network, batch->images[i].to(at::kDouble), options.views).unsqueeze(0);
        const SummedLoss of_image = summed_loss(p.log(), batch->targets.narrow(0, i, 1), options.loss);
        loss += of_image.sum.item<double>();
        counted += of_image.weight.item<double>();
        metrics.add(p, batch->targets.narrow(0, i, 1));
        EXPECT_TRUE(labels.at(image_number).equal(p[0].argmax(0).to(at::kByte)));
      }
    EXPECT_NEAR(record.loss, loss / counted, kReorderedF64 * 10);
    EXPECT_EQ(record.confusion, metrics.confusion());
    EXPECT_EQ(record.metrics.mean_iou, metrics.result().mean_iou);
    EXPECT_EQ(record.images, 3);
  }
}

TEST(Views, OptionsThatCannotWorkAreOneLine) {
  const auto network = make_strided();
  const at::Tensor image = random_image(10, 20);
  const auto fails = [&](const std::vector<std::string>& says, const ViewOptions& options) {
    expect_error(ErrorKind::kUsage, says, [&] { probabilities_of(*network, image, options); });
  };
  fails({"scales", "at least one", "none"}, {.scales = {}});
  fails({"each scale", "(0, 4]", "got 0"}, {.scales = {1, 0}});
  fails({"each scale", "got -1"}, {.scales = {-1}});
  fails({"64 scales", "got 65"}, {.scales = std::vector<double>(65, 1.0)});
  fails({"each scale", "got nan"}, {.scales = {std::nan("")}});
  fails({"scale 0.04 leaves no pixel", "20 x 10 pixels", "at least 0.05"}, {.scales = {1, 0.04}});
  fails({"stride", "window", "stride 9 and window 8"}, {.window = 8, .stride = 9});
  fails({"a stride needs a window", "stride 4"}, {.stride = 4});
  fails({"window", "-1"}, {.window = -1});
}

/// Remembers the images that it was given, and returns their sums as logits.
class SumsOfCrops : public nn::Model {
 public:
  at::Tensor forward(const at::Tensor& images) override {
    seen.push_back(images.clone());
    return images.mean({2, 3}) * (1 + 0.1 * static_cast<double>(seen.size()));
  }
  bool is_segmentation() const override { return false; }
  std::vector<at::Tensor> seen;
};

TEST(TenCrop, CornersAndCentreThenTheirMirrorImages) {
  SumsOfCrops network;
  const at::Tensor images = at::randn({2, 3, 9, 13});
  const at::Tensor mean = ten_crop_logits(network, images, 5, {});
  const auto crop = [&](const at::Tensor& x, int64_t top, int64_t left) {
    return x.narrow(2, top, 5).narrow(3, left, 5);
  };
  const at::Tensor mirrored = images.flip({3});
  ASSERT_EQ(network.seen.size(), 10u);
  std::size_t i = 0;
  at::Tensor sum = at::zeros({2, 3});
  for (const at::Tensor& x : {images, mirrored})
    for (const auto& [top, left] : {std::pair<int64_t, int64_t>{0, 0}, {0, 8}, {4, 0}, {4, 8}, {2, 4}}) {
      EXPECT_TRUE(network.seen[i].equal(crop(x, top, left))) << "crop " << i;
      sum += crop(x, top, left).mean({2, 3}) * (1 + 0.1 * static_cast<double>(++i));
    }
  EXPECT_LT(relative_error(mean, sum / 10), kReorderedF32);
}

TEST(TenCrop, AnEvaluationRanksTheMeanLogits) {
  at::manual_seed(2);
  TinyClassifier model(3);
  model.eval();
  auto o = loader_options(4);
  o.shuffle = false;
  o.drop_last = false;
  data::Loader loader(std::make_shared<BrightestColor>(7, 12, /*segmentation=*/false), o);
  LoaderBatches batches(loader);
  const EvaluationRecord record =
      evaluate(model, batches, {.format = kF64, .ten_crop = 8, .confusion_classes = 3});
  const at::NoGradGuard no_grad;
  double loss = 0;
  std::vector<int64_t> confusion(9);
  loader.start_epoch(0);
  while (auto batch = loader.next()) {
    const at::Tensor logits = ten_crop_logits(model, batch->images.to(at::kDouble), 8, kF64);
    loss += at::cross_entropy_loss(logits, batch->targets, {}, at::Reduction::Sum).item<double>();
    for (int64_t i = 0; i < logits.size(0); ++i)
      ++confusion[batch->targets[i].item<int64_t>() * 3 + logits[i].argmax().item<int64_t>()];
  }
  EXPECT_NEAR(record.loss, loss / 7, kReorderedF64);
  EXPECT_EQ(record.confusion, confusion);
  EXPECT_DOUBLE_EQ(record.metrics.top1, static_cast<double>(confusion[0] + confusion[4] + confusion[8]) / 7);
}

TEST(TenCrop, WhatCannotBeCroppedOrHasPixelLabelsIsAnError) {
  SumsOfCrops network;
  expect_error(ErrorKind::kUsage, {"ten crops of 8 x 8", "got 9 x 7", "short side of at least 8"},
               [&] { ten_crop_logits(network, at::zeros({1, 3, 7, 9}), 8, {}); });
  const auto evaluate_with = [](nn::Model& model, bool segmentation, const EvaluationOptions& options) {
    data::Loader loader(std::make_shared<BrightestColor>(2, 12, segmentation), loader_options(2));
    LoaderBatches batches(loader);
    evaluate(model, batches, options);
  };
  expect_error(ErrorKind::kUsage, {"ten crops", "one label per pixel"},
               [&] { evaluate_with(*make_tiny(1), true, {.ten_crop = 8}); });
  TinyClassifier classifier;
  expect_error(ErrorKind::kUsage, {"scales", "one label each"},
               [&] { evaluate_with(classifier, false, {.views = {.flip = true}}); });
}

}  // namespace
}  // namespace palimpsest::train
