#include "palimpsest/data/example.h"

#include "palimpsest/data/resize.h"
#include "palimpsest/io/atomic_file.h"
#include "palimpsest/io/image.h"
#include "palimpsest/memory/meter.h"
#include "tests/io/jpeg_writer.h"
#include "tests/support/dataset.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tolerance.h"

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

namespace palimpsest::data {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;

at::Tensor random_image(int64_t height, int64_t width, uint64_t seed) {
  at::Tensor image = at::empty({height, width, 3}, at::kByte);
  Random random(seed);
  for (int64_t i = 0; i < image.numel(); ++i) image.mutable_data_ptr<uint8_t>()[i] = random.next();
  return image;
}

TransformOptions bytes(bool training = true) {
  TransformOptions options;
  options.training = training;
  options.resampling = Resampling::kBilinear;
  return options;
}

Sample example(const at::Tensor& image, const TransformOptions& options, uint64_t seed = 1,
               const at::Tensor& label = {}, int64_t class_id = -1) {
  Random random(seed);
  return make_example(image, label, options, random, "test", class_id);
}

/// Returns the view of the seed on the whole resized image: (3, H, W), padded with `padding`.
at::Tensor by_hand(const at::Tensor& image, const TransformOptions& options, uint64_t seed,
                   const std::array<int64_t, 3>& padding) {
  Random random(seed);
  const View view = choose_view(image.size(0), image.size(1), options, random, "test");
  at::Tensor source = image;
  if (view.cut_height > 0)
    source =
        image.narrow(0, view.cut_top, view.cut_height).narrow(1, view.cut_left, view.cut_width).contiguous();
  const Filter filter = options.resampling == Resampling::kBicubic ? Filter::kBicubic : Filter::kBilinear;
  const at::Tensor whole = resize(source, view.scaled_height, view.scaled_width, filter);
  at::Tensor window = at::empty({3, view.height, view.width}, at::kByte);
  for (int64_t c = 0; c < 3; ++c) window[c].fill_(padding[c]);
  for (int64_t y = 0; y < view.height; ++y)
    for (int64_t x = 0; x < view.width; ++x) {
      const int64_t row = view.top + y, column = view.left + x;
      if (row < 0 || row >= whole.size(0) || column < 0 || column >= whole.size(1)) continue;
      window.select(2, view.flip ? view.width - 1 - x : x).select(1, y).copy_(whole[row][column]);
    }
  return window;
}

TEST(Example, OfBytesIsTheWindowOfTheResizedImage) {
  const at::Tensor image = random_image(37, 53, 1);
  const std::array<int64_t, 3> mean{124, 116, 104};  // 255 * (0.485, 0.456, 0.406)
  for (const Resampling resampling : {Resampling::kBilinear, Resampling::kBicubic}) {
    TransformOptions window = bytes(), area = bytes(), centre = bytes(false);
    window.crop = 40;
    window.scale_min = 0.5;
    window.scale_max = 2;
    area.crop = 24;
    area.area_crop = true;
    centre.short_side = 32;
    centre.crop = 28;
    for (TransformOptions options : {window, area, centre}) {
      options.resampling = resampling;
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const Sample sample = example(image, options, seed);
        ASSERT_EQ(sample.image.scalar_type(), at::kByte);
        EXPECT_TRUE(sample.image.equal(by_hand(image, options, seed, mean))) << seed;
      }
    }
  }
}

TEST(Example, OfBytesIsNormalizedToTheValuesOfTheFloatExampleWhereNothingIsScaled) {
  const at::Tensor image = random_image(20, 30, 2);
  TransformOptions options = bytes(), floats;
  options.crop = floats.crop = 16;
  options.mean = floats.mean = {0.1, 0.2, 0.3};
  const Sample sample = example(image, options, 5);
  EXPECT_TRUE(normalized(sample.image, sample.normalization).equal(example(image, floats, 5).image));
}

TEST(Example, TheShortSideIsScaledAndTheLongSideRoundedDown) {
  TransformOptions options = bytes(false);
  options.short_side = 256;
  Random random(1);
  const View wide = choose_view(375, 500, options, random, "test");
  EXPECT_EQ(wide.scaled_height, 256);
  EXPECT_EQ(wide.scaled_width, 341);  // 341.33
  const View high = choose_view(1000, 300, options, random, "test");
  EXPECT_EQ(high.scaled_height, 853);
  EXPECT_EQ(high.scaled_width, 256);
}

TEST(Example, TheMiddleOfAnOddRoomIsRoundedToEven) {
  // torchvision: int(round(room / 2.0))
  for (const auto& [room, first] : {std::pair<int64_t, int64_t>{0, 0},
                                    {1, 0},
                                    {2, 1},
                                    {3, 2},
                                    {5, 2},
                                    {115, 58},
                                    {-1, -1},
                                    {-3, -2},
                                    {-4, -2}})
    EXPECT_EQ(middle_of(room), first) << room;
  TransformOptions centre = bytes(false);
  centre.crop = 4;
  Random random(1);
  const View view = choose_view(7, 9, centre, random, "image");
  EXPECT_EQ(view.top, 2);
  EXPECT_EQ(view.left, 2);
}

TEST(Example, ACropOfRandomAreaKeepsToItsLimits) {
  TransformOptions options = bytes();
  options.crop = 32;
  options.area_crop = true;
  Random random(3);
  double least = 1, most = 0;
  const int64_t height = 480, width = 640;
  for (int round = 0; round < 2000; ++round) {
    const View view = choose_view(height, width, options, random, "test");
    EXPECT_GE(std::min(view.cut_top, view.cut_left), 0);
    EXPECT_LE(view.cut_top + view.cut_height, height);
    EXPECT_LE(view.cut_left + view.cut_width, width);
    const double area = static_cast<double>(view.cut_height * view.cut_width) / (height * width);
    const double aspect = static_cast<double>(view.cut_width) / static_cast<double>(view.cut_height);
    EXPECT_GT(area, 0.079);
    EXPECT_GT(aspect, 0.74);
    EXPECT_LT(aspect, 1.35);
    least = std::min(least, area);
    most = std::max(most, area);
  }
  EXPECT_LT(least, 0.1);
  EXPECT_GT(most, 0.9);
  // No rectangle of an allowed aspect has the area: the largest one in the middle.
  options.area_min = options.area_max = 1;
  const View view = choose_view(10, 1000, options, random, "test");
  EXPECT_EQ(view.cut_height, 10);
  EXPECT_EQ(view.cut_width, 13);
  EXPECT_EQ(view.cut_left, 493);
}

TEST(Example, ACropWithAClassShowsAPixelOfIt) {
  const at::Tensor image = random_image(60, 80, 4);
  at::Tensor label = at::zeros({60, 80}, at::kByte);
  label[7][70] = 3;
  label[55][2] = 3;
  for (const bool area : {false, true}) {
    TransformOptions options = bytes();
    options.crop = 16;
    options.scale_max = 2;
    options.area_crop = area;
    options.area_max = 0.1;
    if (area) options.crop = 64;  // the cut is enlarged, so that no pixel of the label is lost
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const Sample sample = example(image, options, seed, label, 3);
      EXPECT_TRUE(sample.target.eq(3).any().item<bool>()) << seed;
      EXPECT_TRUE(example(image, options, seed, label, 9).target.eq(9).logical_not().all().item<bool>());
    }
  }
}

TEST(Example, ImageAndLabelStayTogetherInBytes) {
  // Each colour is a function of the class.
  const at::Tensor label = random_image(12, 15, 5).select(2, 0).remainder(3).to(at::kByte).contiguous();
  const at::Tensor large = label.repeat_interleave(8, 0).repeat_interleave(8, 1).contiguous();
  const at::Tensor image = large.mul(100).unsqueeze(2).expand({-1, -1, 3}).contiguous();
  TransformOptions options = bytes();
  options.crop = 40;
  for (const bool area : {false, true}) {
    options.area_crop = area;
    options.area_min = 0.4;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const Sample sample = example(image, options, seed, large);
      ASSERT_EQ(sample.target.scalar_type(), at::kByte);
      const at::Tensor ids = sample.image[1].to(at::kFloat).div(100).round().to(at::kByte);
      const double same = ids.eq(sample.target).to(at::kFloat).mean().item<double>();
      EXPECT_GT(same, area ? 0.75 : 0.999) << seed;
    }
  }
}

TEST(Example, OfAReducedJpegLooksLikeThatOfTheWhole) {
  const TemporaryFolder folder;
  at::Tensor picture = at::empty({600, 800, 3}, at::kByte);
  auto* values = picture.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < 600; ++y)
    for (int64_t x = 0; x < 800; ++x)
      for (int64_t c = 0; c < 3; ++c)
        *values++ = static_cast<uint8_t>(127 + 60 * std::sin(x / 40.0 + c) + 60 * std::cos(y / 30.0));
  io::write_jpeg(folder / "a.jpg", picture, 95);
  TransformOptions options = bytes();
  options.short_side = 128;
  options.crop = 112;
  TransformOptions reduced = options;
  reduced.reduce_jpeg = true;
  const io::ImageFile file = open_image(folder / "a.jpg", options);
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Random one(seed), two(seed), three(seed);
    const at::Tensor want = make_example(file, {}, options, one, "a").image;
    const at::Tensor got = make_example(file, {}, reduced, two, "a").image;
    EXPECT_TRUE(got.equal(make_example(file, {}, reduced, three, "a").image));
    EXPECT_FALSE(got.equal(want));
    EXPECT_LT((got.to(at::kFloat) - want.to(at::kFloat)).abs().max().item<double>(),
              testing::kReducedJpegLevels)
        << seed;
  }
}

TEST(Example, OfAReducedMirroredJpegLiesWhereThatOfTheWholeDoes) {
  // An eighth of 801 x 601 pixels is 100.1 x 75.1: the last pixel of each axis of the file is an eighth of one.
  const TemporaryFolder folder;
  const int64_t height = 601, width = 801;
  at::Tensor picture = at::empty({height, width, 3}, at::kByte);
  auto* values = picture.mutable_data_ptr<uint8_t>();
  for (int64_t y = 0; y < height; ++y)
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < 3; ++c)
        *values++ = static_cast<uint8_t>(c == 0 ? 255 * x / width : c == 1 ? 255 * y / height : 128);
  io::write_jpeg(folder / "a.jpg", picture, 95);
  const std::string plain = io::read_file(folder / "a.jpg");
  TransformOptions options = bytes(/*training=*/false);
  options.short_side = 75;
  TransformOptions reduced = options;
  reduced.reduce_jpeg = true;
  for (uint32_t turn = 1; turn <= 8; ++turn) {
    const io::ImageFile file(
        plain.substr(0, 2) +
            testing::exif_segment(true, {{testing::kOrientationTag, testing::kShort, 1, turn}}) +
            plain.substr(2),
        "a.jpg");
    Random one(1), two(1);
    const at::Tensor want = make_example(file, {}, options, one, "a").image.to(at::kFloat);
    const at::Tensor got = make_example(file, {}, reduced, two, "a").image.to(at::kFloat);
    ASSERT_EQ(got.sizes(), want.sizes());
    // A pixel is 2.5 levels wide: what lies beside its place is brighter or darker everywhere.
    EXPECT_LT((got - want).mean({1, 2}).abs().max().item<double>(), testing::kReducedJpegMeanLevels) << turn;
  }
}

TEST(Example, OfALargePhotoTakesTheMemoryOfItsView) {
  const TemporaryFolder folder;
  const int64_t height = 3968, width = 5632;  // 22 megapixels, the largest of Mapillary Vistas
  io::write_jpeg(folder / "large.jpg", at::full({height, width, 3}, 90, at::kByte), 50);
  // The image without its label: a label is a PNG, which is decoded whole.
  const auto peak_of = [&](const TransformOptions& options, uint64_t seed) {
    const io::ImageFile file = open_image(folder / "large.jpg", options);
    Random random(seed);
    const memory::Meter meter;
    make_example(file, {}, options, random, "large");
    return meter.peak_bytes() - meter.base_bytes();
  };
  TransformOptions small = bytes();
  small.short_side = 256;
  small.crop = 224;
  small.reduce_jpeg = true;
  TransformOptions native = bytes();
  native.crop = 776;
  native.scale_min = 0.7;
  native.scale_max = 2;
  for (uint64_t seed = 0; seed < 3; ++seed) {
    const int64_t view_of_small = 3 * 224 * 224, view_of_native = 3 * 776 * 776;
    EXPECT_LT(peak_of(small, seed), 8 * view_of_small);    // decoded pixels, resized picture and result
    EXPECT_LT(peak_of(native, seed), 8 * view_of_native);  // at the scale 0.7 the crop shows twice its pixels
  }
}

TEST(Resize, OfAPartThatDoesNotFitIsAnError) {
  const ResizeAxis axis({{0, 10}, 0, 10, 5, {0, 5}}, Filter::kBilinear);
  EXPECT_THROW(resize(at::zeros({9, 10, 3}, at::kByte), axis, axis), std::invalid_argument);
  EXPECT_THROW(resize(at::zeros({10, 10, 3}, at::kFloat), axis, axis), std::invalid_argument);
  EXPECT_NO_THROW(resize(at::zeros({10, 10, 3}, at::kByte), axis, axis));
}

TEST(Resize, OfAWindowReadsOnlyWhatTheWindowNeeds) {
  const ResizeAxis copied({{0, 100}, 0, 100, 100, {20, 30}}, Filter::kBilinear);
  EXPECT_TRUE(copied.copies());
  EXPECT_EQ(copied.source().begin, 20);
  EXPECT_EQ(copied.source().end, 30);
  const ResizeAxis halved({{0, 100}, 0, 100, 50, {10, 15}}, Filter::kBilinear);
  EXPECT_GE(halved.source().begin, 18);
  EXPECT_LE(halved.source().end, 32);
}

TEST(Colors, DrawTheSameNumbersAndEveryOrder) {
  ColorOptions options{.brightness = 0.4, .contrast = 0.3, .saturation = 0.2, .lighting = 0.1};
  Random random(6), other(6);
  std::set<std::array<ColorChange::Kind, 3>> orders;
  double least[3] = {9, 9, 9}, most[3] = {};
  double squares = 0;
  for (int round = 0; round < 2000; ++round) {
    const ColorChange change = draw_colors(options, random);
    other.skip(9);
    orders.insert(change.order);
    for (int kind = 0; kind < 3; ++kind) {
      least[kind] = std::min(least[kind], change.factor[kind]);
      most[kind] = std::max(most[kind], change.factor[kind]);
    }
    squares += std::pow(change.offset[0], 2);
  }
  EXPECT_EQ(random.next(), other.next());
  EXPECT_EQ(orders.size(), 6u);
  const double strengths[] = {0.4, 0.3, 0.2};
  for (int kind = 0; kind < 3; ++kind) {
    EXPECT_NEAR(least[kind], 1 - strengths[kind], 0.01);
    EXPECT_NEAR(most[kind], 1 + strengths[kind], 0.01);
  }
  // 255 * 0.1 * |(0.2175 * 0.5675, 0.0188 * 0.7192, 0.0045 * 0.4009)| = 3.17 grey levels
  EXPECT_NEAR(std::sqrt(squares / 2000), 3.17, 0.2);
  Random untouched(7), expected(7);
  EXPECT_EQ(draw_colors({}, untouched).factor, (std::array<double, 3>{1, 1, 1}));
  EXPECT_EQ(untouched.next(), expected.next());
}

TEST(Colors, TheLightingAddsAndStaysInRange) {
  const at::Tensor image = at::tensor({0, 100, 255, 3, 250, 7}, at::kByte).view({1, 2, 3});
  ColorChange change;
  change.offset = {-5, 10, 20};
  change_colors(image, change);
  EXPECT_TRUE(image.flatten().equal(at::tensor({0, 110, 255, 0, 255, 27}, at::kByte)));
}

TEST(Colors, ChangeTheImageAndNotThePadding) {
  TransformOptions options = bytes();
  options.crop = 20;
  options.colors.brightness = 1;
  options.colors.lighting = 1;
  const Sample sample = example(at::full({10, 20, 3}, 50, at::kByte), options, 3);
  int64_t padding = 0;
  for (int64_t y = 0; y < 20; ++y) padding += sample.image[0][y].eq(124).all().item<bool>();
  EXPECT_EQ(padding, 10);
}

TEST(TransformOptions, OfBytesOutOfRangeAreUsageErrorsWithTheValue) {
  const auto refused = [](const std::string& value, auto change) {
    TransformOptions options = bytes();
    change(options);
    expect_error(ErrorKind::kUsage, {"transform", value}, [&] { check_transform(options); });
  };
  refused("-1", [](auto& o) { o.short_side = -1; });
  refused("[0, 1048576]", [](auto& o) { o.short_side = std::numeric_limits<int64_t>::max() / 4; });
  refused("0.001", [](auto& o) { o.scale_min = 0.001; });
  refused("0", [](auto& o) { o.area_min = 0; });
  refused("0.05", [](auto& o) { o.area_max = 0.05; });
  refused("1.5", [](auto& o) { o.area_max = 1.5; });
  refused("0.5", [](auto& o) { o.aspect_max = 0.5; });
  refused("got 0", [](auto& o) { o.area_crop = true; });
  refused("1.1", [](auto& o) { o.colors.contrast = 1.1; });
  refused("-0.1", [](auto& o) { o.colors.saturation = -0.1; });
  refused("11", [](auto& o) { o.colors.lighting = 11; });
  refused("-1", [](auto& o) { o.ignore_id = -1; });
  refused("interpolate", [](auto& o) { o.resampling = Resampling::kInterpolate, o.reduce_jpeg = true; });
  refused("interpolate", [](auto& o) { o.resampling = Resampling::kInterpolate, o.colors.lighting = 1; });
  EXPECT_NO_THROW(check_transform(bytes()));
}

TEST(Example, AShortSideThatMakesTooManyPixelsIsAnError) {
  TransformOptions options = bytes(false);
  options.short_side = 16384;
  Random random(1);
  expect_error(ErrorKind::kUsage, {"16384", "strip.png", "1000x10", "smaller short side"},
               [&] { choose_view(10, 1000, options, random, "strip.png"); });
}

}  // namespace
}  // namespace palimpsest::data
