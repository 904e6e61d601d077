#include "palimpsest/data/transforms.h"

#include "tests/support/expect_error.h"
#include "tests/support/tolerance.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace palimpsest::data {
namespace {

using testing::expect_error;

/// Pixel (y, x) holds (y, x, 7): where it came from can be read off after any transform.
at::Tensor position_image(int64_t height, int64_t width) {
  at::Tensor image = at::full({height, width, 3}, 7, at::kByte);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      image[y][x][0] = y;
      image[y][x][1] = x;
    }
  }
  return image;
}

/// Undoes the normalization: values 0 to 255 again.
at::Tensor values(const at::Tensor& normalized, const TransformOptions& options) {
  const auto three = [](const std::array<double, 3>& v) {
    return at::tensor({v[0], v[1], v[2]}, at::kDouble).view({3, 1, 1});
  };
  return (normalized.to(at::kDouble) * three(options.std) + three(options.mean)) * 255;
}

TransformOptions evaluation() {
  TransformOptions options;
  options.training = false;
  return options;
}

View whole(const at::Tensor& image, int64_t height, int64_t width, bool flip = false) {
  return {height, width, 0, 0, height, width, flip};
}

TEST(Normalization, IsValueOver255MinusMeanOverStd) {
  const auto options = evaluation();
  const at::Tensor image = position_image(5, 9);
  const at::Tensor got = view_image(image, whole(image, 5, 9), options);
  ASSERT_EQ(got.sizes(), (at::IntArrayRef{3, 5, 9}));
  ASSERT_EQ(got.scalar_type(), at::kFloat);
  const double want = (4.0 / 255 - 0.485) / 0.229, want_blue = (7.0 / 255 - 0.406) / 0.225;
  EXPECT_NEAR(got[0][4][2].item<double>(), want, testing::kRoundingF32);
  EXPECT_NEAR(got[2][0][0].item<double>(), want_blue, testing::kRoundingF32);
}

TEST(Scaling, OfImagesIsLibtorchsBilinearInterpolation) {
  Random random(1);
  const auto options = evaluation();
  at::Tensor image = at::empty({23, 31, 3}, at::kByte);
  for (int64_t i = 0; i < image.numel(); ++i) image.mutable_data_ptr<uint8_t>()[i] = random.next();
  const at::Tensor planes = image.permute({2, 0, 1}).unsqueeze(0).to(at::kDouble);
  for (const auto& [height, width] : {std::pair{16, 22}, {23, 31}, {46, 62}, {1, 1}, {24, 30}, {100, 7}}) {
    const at::Tensor got = values(view_image(image, whole(image, height, width), options), options);
    const at::Tensor want = at::upsample_bilinear2d(planes, {height, width}, /*align_corners=*/false)[0];
    EXPECT_LT((got - want).abs().max().item<double>(), testing::kInterpolatedLevels)
        << height << "x" << width;
  }
}

TEST(Scaling, OfLabelsTakesTheNearestPixelAndInventsNoId) {
  at::Tensor label = at::full({8, 10}, 255, at::kByte);
  label.slice(1, 3, 6).fill_(2);
  for (int64_t height = 4; height <= 20; ++height) {
    const int64_t width = height * 10 / 8;
    const at::Tensor got = view_label(label, whole(label, height, width), 255);
    EXPECT_TRUE(got.eq(2).logical_or(got.eq(255)).all().item<bool>());
    for (int64_t x = 0; x < width; ++x) {
      const auto source =
          static_cast<int64_t>((static_cast<double>(x) + 0.5) * 10 / static_cast<double>(width));
      EXPECT_EQ(got[0][x].item<int64_t>(), source >= 3 && source < 6 ? 2 : 255) << x << " of " << width;
    }
  }
}

TEST(Flip, MirrorsLeftToRight) {
  const auto options = evaluation();
  const at::Tensor image = position_image(6, 11), label = image.select(2, 1).contiguous();
  EXPECT_TRUE(view_image(image, whole(image, 6, 11, true), options)
                  .equal(view_image(image, whole(image, 6, 11), options).flip({2})));
  EXPECT_TRUE(view_label(label, whole(label, 6, 11, true), 255).equal(label.flip({1}).to(at::kLong)));
  // A flip of a scaled image is the scaled flipped image.
  EXPECT_TRUE(view_image(image, whole(image, 9, 14, true), options)
                  .equal(view_image(image, whole(image, 9, 14), options).flip({2})));
}

TEST(Views, KeepImageAndLabelTogether) {
  TransformOptions options;
  options.crop = 40;
  options.scale_min = 0.7;
  options.scale_max = 2;
  const int64_t height = 48, width = 64;
  const at::Tensor image = position_image(height, width);
  const at::Tensor rows = image.select(2, 0).contiguous(), columns = image.select(2, 1).contiguous();
  Random random(3);
  int padded = 0, flipped = 0;
  for (int round = 0; round < 200; ++round) {
    const View view = choose_view(height, width, options, random, "test");
    const at::Tensor seen = values(view_image(image, view, options), options);
    const at::Tensor row = view_label(rows, view, 200), column = view_label(columns, view, 200);
    ASSERT_EQ(seen.sizes(), (at::IntArrayRef{3, 40, 40}));
    const at::Tensor inside = row.ne(200);
    EXPECT_TRUE(inside.equal(column.ne(200)));
    // Bilinear positions lie within half a pixel (of the original) of the nearest one.
    const at::Tensor row_error = (seen[0] - row).abs().masked_select(inside);
    const at::Tensor column_error = (seen[1] - column).abs().masked_select(inside);
    EXPECT_LE(row_error.max().item<double>(), 0.51);
    EXPECT_LE(column_error.max().item<double>(), 0.51);
    // Padding is the mean colour exactly where the label is ignored.
    const at::Tensor outside = inside.logical_not();
    EXPECT_TRUE(
        view_image(image, view, options).masked_select(outside.unsqueeze(0)).eq(0).all().item<bool>());
    EXPECT_LT((seen[2].masked_select(inside) - 7).abs().max().item<double>(), testing::kInterpolatedLevels);
    padded += outside.any().item<bool>();
    flipped += view.flip;
  }
  EXPECT_GT(padded, 5);
  EXPECT_GT(flipped, 60);
  EXPECT_LT(flipped, 140);
}

TEST(Views, ScalesFillTheRange) {
  TransformOptions options;
  options.scale_min = 0.7;
  options.scale_max = 2;
  Random random(4);
  double lowest = 10, highest = 0, sum = 0;
  for (int round = 0; round < 2000; ++round) {
    const View view = choose_view(1000, 2000, options, random, "test");
    const double scale = static_cast<double>(view.scaled_height) / 1000;

    EXPECT_NEAR(static_cast<double>(view.scaled_width) / 2000, scale, 1e-3);
    lowest = std::min(lowest, scale);
    highest = std::max(highest, scale);
    sum += scale;
  }
  EXPECT_GE(lowest, 0.7);
  EXPECT_LE(highest, 2.0);
  EXPECT_LT(lowest, 0.71);
  EXPECT_GT(highest, 1.99);
  EXPECT_NEAR(sum / 2000, 1.35, 0.03);
}

TEST(Views, ATrainingCropLiesAnywhereItFits) {
  TransformOptions options;
  options.crop = 8;
  Random random(5);
  std::array<int, 5> tops{}, lefts{};
  for (int round = 0; round < 1000; ++round) {
    const View view = choose_view(12, 4, options, random, "test");  // 4 rows to spare, 4 columns missing
    ASSERT_GE(view.top, 0);
    ASSERT_LE(view.top, 4);
    ASSERT_LE(view.left, 0);
    ASSERT_GE(view.left, -4);
    ++tops[view.top];
    ++lefts[-view.left];
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_GT(tops[i], 140) << i;
    EXPECT_GT(lefts[i], 140) << i;
  }
}

TEST(Views, WithoutTrainingNothingIsRandom) {
  TransformOptions options = evaluation();
  options.scale_min = 0.5;
  options.scale_max = 3;
  options.flip_probability = 1;
  Random random(6);
  for (int round = 0; round < 20; ++round) {
    const View view = choose_view(30, 40, options, random, "test");
    EXPECT_EQ(view.scaled_height, 30);
    EXPECT_EQ(view.scaled_width, 40);
    EXPECT_EQ(view.height, 30);
    EXPECT_EQ(view.width, 40);
    EXPECT_FALSE(view.flip);
  }
  options.crop = 35;
  const View view = choose_view(30, 40, options, random, "test");  // the middle, padded above and below
  EXPECT_EQ(view.top, -3);
  EXPECT_EQ(view.left, 2);
}

TEST(Views, DrawTheSameNumbersWhateverTheOptions) {
  Random first(7), second(7);
  choose_view(30, 40, evaluation(), first, "test");
  TransformOptions options;
  options.crop = 50;
  options.scale_max = 2;
  choose_view(30, 40, options, second, "test");
  EXPECT_EQ(first.next(), second.next());
}

TEST(Views, ACropThatCouldNeedPaddingIsAnErrorWhenPaddingIsOff) {
  TransformOptions options;
  options.pad = false;
  options.crop = 300;
  options.scale_min = 0.7;
  options.scale_max = 2;
  Random random(8);
  // 252 rows at the smallest scale; every draw says so, not only the unlucky ones.
  for (int round = 0; round < 10; ++round) {
    expect_error(ErrorKind::kUsage,
                 {"300x300", "street.jpg", "480x360", "336x252", "scale 0.7", "at most 252"},
                 [&] { choose_view(360, 480, options, random, "street.jpg"); });
  }
  options.crop = 252;
  EXPECT_NO_THROW(choose_view(360, 480, options, random, "street.jpg"));
  options.training = false;
  options.crop = 361;
  expect_error(ErrorKind::kUsage, {"361x361", "480x360", "at most 360"},
               [&] { choose_view(360, 480, options, random, "street.jpg"); });
}

TEST(Views, AnImageOfOnePixelIsFine) {
  TransformOptions options;
  options.crop = 16;
  options.scale_min = 0.5;
  Random random(9);
  const at::Tensor image = at::full({1, 1, 3}, 200, at::kByte), label = at::full({1, 1}, 3, at::kByte);
  for (int round = 0; round < 20; ++round) {
    const View view = choose_view(1, 1, options, random, "test");
    EXPECT_EQ(view_label(label, view, -1).eq(3).sum().item<int64_t>(), 1);
    EXPECT_EQ(view_image(image, view, options)[0].ne(0).sum().item<int64_t>(), 1);
  }
}

TEST(Views, AScaleThatLeavesNoPixelIsAnErrorOfTheImage) {
  TransformOptions options;
  options.crop = 16;
  options.scale_min = 0.01;
  Random random(9);
  expect_error(ErrorKind::kData,
               {"the scale 0.01 leaves no pixel of test", "60x40 pixels", "at least 0.0125"},
               [&] { choose_view(40, 60, options, random, "test"); });
  options.scale_min = 0.0125;
  choose_view(40, 60, options, random, "test");
}

TEST(TransformOptions, OutOfRangeAreUsageErrorsWithTheValue) {
  const auto refused = [](const std::string& value, auto change) {
    TransformOptions options;
    change(options);
    expect_error(ErrorKind::kUsage, {"transform", value}, [&] { check_transform(options); });
  };
  refused("-1", [](auto& o) { o.crop = -1; });
  refused("0", [](auto& o) { o.scale_min = 0; });
  refused("0.5", [](auto& o) { o.scale_max = 0.5; });
  refused("nan", [](auto& o) { o.scale_max = std::numeric_limits<double>::quiet_NaN(); });
  refused("1.5", [](auto& o) { o.flip_probability = 1.5; });
  refused("0", [](auto& o) { o.std[1] = 0; });
  refused("inf", [](auto& o) { o.mean[2] = INFINITY; });
  EXPECT_NO_THROW(check_transform({}));
}

}  // namespace
}  // namespace palimpsest::data
