#include "palimpsest/base/random.h"
#include "palimpsest/io/image.h"
#include "tests/io/jpeg_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tolerance.h"

#include <ATen/ATen.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace palimpsest::io {
namespace {

using testing::expect_error;
using testing::jpeg;
using testing::TemporaryFolder;

ImagePart whole(const ImageFile& file, int eighths) {
  const ImageSize size = reduced_size(file.size(), eighths);
  return {eighths, 0, 0, size.height, size.width};
}

/// A part of a picture at a random place, of a random size.
ImagePart random_part(const ImageFile& file, int eighths, Random& random) {
  const ImageSize size = reduced_size(file.size(), eighths);
  ImagePart part{eighths, random.below(size.height), random.below(size.width), 0, 0};
  part.height = 1 + random.below(size.height - part.top);
  part.width = 1 + random.below(size.width - part.left);
  return part;
}

const testing::JpegKind kKinds[] = {
    {.components = 1},
    {.components = 3},
    {.components = 4},
    {.components = 3, .progressive = true},
    {.components = 3, .arithmetic = true},
    {.components = 3, .restart_rows = 2},
};

TEST(ImagePart, OfAJpegHasThePixelsOfTheWholeForAnyKindOrientationAndReduction) {
  Random random(1);
  for (std::size_t kind = 0; kind < std::size(kKinds); ++kind) {
    for (const auto& [height, width] : {std::pair{1, 1}, {7, 41}, {90, 67}, {130, 33}}) {
      const std::string plain = jpeg(height, width, kKinds[kind]);
      for (uint32_t turn = 1; turn <= 8; ++turn) {
        const std::string bytes =
            plain.substr(0, 2) +
            testing::exif_segment(true, {{testing::kOrientationTag, testing::kShort, 1, turn}}) +
            plain.substr(2);
        const ImageFile file(bytes, "a.jpg");
        for (int eighths = 1; eighths <= 8; ++eighths) {
          const at::Tensor all = file.decode(whole(file, eighths));
          if (eighths == 8) {
            EXPECT_TRUE(all.equal(file.decode()));
          }
          for (int round = 0; round < 4; ++round) {
            const ImagePart part = random_part(file, eighths, random);
            const at::Tensor got = file.decode(part);
            const at::Tensor want = all.narrow(0, part.top, part.height).narrow(1, part.left, part.width);
            ASSERT_TRUE(got.is_contiguous() && got.equal(want))
                << "kind " << kind << ", " << width << "x" << height << ", orientation " << turn << ", "
                << eighths << "/8: " << part.width << "x" << part.height << " at " << part.left << ", "
                << part.top;
          }
        }
      }
    }
  }
}

TEST(ImagePart, OfAReducedJpegIsTheSmallerPicture) {
  const TemporaryFolder folder;
  at::Tensor picture = at::empty({160, 240, 3}, at::kByte);
  for (int64_t y = 0; y < 160; ++y)
    for (int64_t x = 0; x < 240; ++x)
      for (int64_t c = 0; c < 3; ++c) picture[y][x][c] = c == 0 ? x : c == 1 ? y : (x + y) / 2;
  write_jpeg(folder / "a.jpg", picture, 97);
  const ImageFile file(folder / "a.jpg");
  EXPECT_TRUE(file.is_reducible());
  EXPECT_EQ(file.size(), (ImageSize{160, 240}));
  for (int eighths = 1; eighths <= 8; ++eighths) {
    const at::Tensor got = file.decode(whole(file, eighths)).to(at::kFloat);
    ASSERT_EQ(got.sizes(), (at::IntArrayRef{20 * eighths, 30 * eighths, 3}));
    const at::Tensor want =
        at::adaptive_avg_pool2d(picture.permute({2, 0, 1}).to(at::kFloat), {20 * eighths, 30 * eighths})
            .permute({1, 2, 0});
    EXPECT_LT((got - want).abs().max().item<double>(), testing::kJpegWorstError) << eighths;
  }
}

TEST(ImagePart, OfAPngIsTheWindow) {
  const TemporaryFolder folder;
  Random random(2);
  at::Tensor picture = at::empty({19, 33, 3}, at::kByte);
  for (int64_t i = 0; i < picture.numel(); ++i) picture.mutable_data_ptr<uint8_t>()[i] = random.next();
  write_png(folder / "a.png", picture);
  const ImageFile file(folder / "a.png");
  EXPECT_FALSE(file.is_reducible());
  EXPECT_EQ(file.size(), (ImageSize{19, 33}));
  EXPECT_TRUE(file.decode({8, 3, 5, 11, 7}).equal(picture.narrow(0, 3, 11).narrow(1, 5, 7)));
  EXPECT_THROW(file.decode({4, 0, 0, 2, 2}), std::invalid_argument);
}

TEST(ImagePart, OutsideThePictureIsAnError) {
  const ImageFile file(jpeg(20, 30, {}), "a.jpg");
  EXPECT_NO_THROW(file.decode({4, 9, 0, 1, 15}));
  for (const ImagePart& part : {ImagePart{8, 0, 0, 21, 30},
                                {8, 0, 1, 20, 30},
                                {8, -1, 0, 5, 5},
                                {8, 0, 0, 0, 5},
                                {4, 0, 0, 11, 15},
                                {0, 0, 0, 1, 1},
                                {9, 0, 0, 20, 30}})
    EXPECT_THROW(file.decode(part), std::invalid_argument);
}

TEST(ImagePart, DamageBelowThePartIsAnErrorToo) {
  for (const bool progressive : {false, true}) {
    const std::string bytes = jpeg(200, 160, {.progressive = progressive});
    const ImageFile file(bytes.substr(0, bytes.size() * 9 / 10), "cut.jpg");
    for (const int eighths : {1, 4, 8})
      expect_error(ErrorKind::kData, {"cut.jpg"}, [&] { file.decode({eighths, 0, 0, 4, 4}); });
  }
}

}  // namespace
}  // namespace palimpsest::io
