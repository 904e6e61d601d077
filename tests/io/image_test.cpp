#include "palimpsest/io/image.h"

#include "palimpsest/base/random.h"
#include "palimpsest/io/atomic_file.h"
#include "tests/io/jpeg_writer.h"
#include "tests/io/png_writer.h"
#include "tests/support/expect_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tolerance.h"

#include <ATen/ATen.h>

#include <array>
#include <filesystem>
#include <stdexcept>
#include <vector>

namespace palimpsest::io {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::put;
using testing::TemporaryFolder;
using testing::write_raw_png;

// Smooth, so that JPEG keeps it within a few levels; every pixel differs from its neighbours.
at::Tensor smooth_picture(int64_t height, int64_t width) {
  at::Tensor picture = at::empty({height, width, 3}, at::kByte);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < 3; ++c) picture[y][x][c] = (40 + 3 * x + 2 * y + 60 * c) % 256 / 2 + 40;
    }
  }
  return picture;
}

at::Tensor noise(at::IntArrayRef sizes, uint64_t seed) {
  at::Tensor values = at::empty(sizes, at::kByte);
  Random random(seed);
  for (int64_t i = 0; i < values.numel(); ++i) values.mutable_data_ptr<uint8_t>()[i] = random.next();
  return values;
}

TEST(Png, WhatIsWrittenIsReadBackExactly) {
  const TemporaryFolder folder;
  for (const auto& [height, width] : {std::pair{1, 1}, {1, 31}, {33, 1}, {17, 32}, {64, 65}}) {
    const at::Tensor rgb = noise({height, width, 3}, 1), grey = noise({height, width}, 2);
    write_png(folder / "rgb", rgb);
    write_png(folder / "grey", grey);
    EXPECT_TRUE(read_image(folder / "rgb").equal(rgb));
    EXPECT_TRUE(read_label(folder / "grey").equal(grey));
    EXPECT_TRUE(read_image(folder / "grey").equal(grey.unsqueeze(2).expand({-1, -1, 3})));
  }
}

TEST(Png, StridesDoNotMatterAndTheSameImageGivesTheSameBytes) {
  const at::Tensor planes = noise({3, 20, 30}, 3);  // as a network has them
  const at::Tensor strided = planes.permute({1, 2, 0});
  EXPECT_EQ(encode_png(strided), encode_png(strided.contiguous()));
}

TEST(Png, AFileNamesTheLibraryThatWroteIt) {
  const TemporaryFolder folder;
  write_png(folder / "rgb", noise({3, 4, 3}, 1));
  write_file_atomically(folder / "labels", encode_png_labels(at::zeros({3, 4}, at::kByte), {{1, 2, 3}}));
  write_raw_png(folder / "foreign", 2, 1, 1, PNG_COLOR_TYPE_GRAY, {0b01000000});
  write_file_atomically(folder / "cut", encode_png(noise({3, 4, 3}, 1)).substr(0, 20));
  write_file_atomically(folder / "text", "Software palimpsest");
  for (const char* ours : {"rgb", "labels"}) EXPECT_EQ(png_software(folder / ours), kPngSoftware);
  for (const char* other : {"foreign", "cut", "text", "none"}) EXPECT_EQ(png_software(folder / other), "");
}

TEST(Png, OtherTensorsAreRefused) {
  EXPECT_THROW(encode_png(at::zeros({4, 4, 3})), std::invalid_argument);
  EXPECT_THROW(encode_png(at::zeros({4, 4, 4}, at::kByte)), std::invalid_argument);
  EXPECT_THROW(encode_png(at::zeros({0, 4}, at::kByte)), std::invalid_argument);
  EXPECT_THROW(encode_png(at::Tensor()), std::invalid_argument);
  EXPECT_THROW(write_jpeg("unused", at::zeros({4, 4}, at::kByte)), std::invalid_argument);
  EXPECT_THROW(write_jpeg("unused", at::zeros({4, 4, 3}, at::kByte), 101), std::invalid_argument);
}

TEST(Png, EveryColorTypeAndDepthBecomesRgb) {
  const TemporaryFolder folder;
  const auto check = [&](std::initializer_list<int> want) {
    const at::Tensor got = read_image(folder / "a").flatten();
    EXPECT_TRUE(got.equal(at::tensor(std::vector<uint8_t>(want.begin(), want.end())))) << got;
  };
  write_raw_png(folder / "a", 2, 1, 1, PNG_COLOR_TYPE_GRAY, {0b01000000});
  check({0, 0, 0, 255, 255, 255});
  write_raw_png(folder / "a", 1, 1, 16, PNG_COLOR_TYPE_RGB, {0x80, 0x80, 0xFF, 0xFF, 0, 0});
  check({0x80, 0xFF, 0});
  write_raw_png(folder / "a", 1, 1, 8, PNG_COLOR_TYPE_RGB_ALPHA, {1, 2, 3, 7});
  check({1, 2, 3});
  write_raw_png(folder / "a", 1, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA, {9, 7});
  check({9, 9, 9});
  write_raw_png(folder / "a", 2, 1, 4, PNG_COLOR_TYPE_PALETTE, {0x20});
  check({20, 120, 220, 0, 100, 200});  // the helper's palette: colour i is (10 i, 100 + 10 i, 200 + 10 i)
}

TEST(Label, GivesTheStoredNumbersOfGreyAndPaletteAtEveryDepth) {
  const TemporaryFolder folder;
  const auto check = [&](std::initializer_list<int> want) {
    const at::Tensor got = read_label(folder / "a");
    EXPECT_EQ(got.dim(), 2);
    EXPECT_TRUE(got.flatten().equal(at::tensor(std::vector<uint8_t>(want.begin(), want.end())))) << got;
  };
  for (const int color : {PNG_COLOR_TYPE_GRAY, PNG_COLOR_TYPE_PALETTE}) {
    write_raw_png(folder / "a", 3, 1, 1, color, {0b10100000});
    check({1, 0, 1});
    write_raw_png(folder / "a", 3, 1, 2, color, {0b11011000});
    check({3, 1, 2});
    write_raw_png(folder / "a", 3, 1, 4, color, {0x0A, 0xB0});
    check({0, 10, 11});
    write_raw_png(folder / "a", 3, 2, 8, color, {0, 5, 4, 3, 2, 1});
    check({0, 5, 4, 3, 2, 1});
  }
}

TEST(Label, SixteenBitsAreTakenWhileEveryIdIsBelow256) {
  const TemporaryFolder folder;
  write_raw_png(folder / "a", 2, 1, 16, PNG_COLOR_TYPE_GRAY, {0, 3, 0, 255});
  EXPECT_TRUE(read_label(folder / "a").equal(at::tensor({3, 255}, at::kByte).unsqueeze(0)));
  write_raw_png(folder / "a", 2, 2, 16, PNG_COLOR_TYPE_GRAY, {0, 3, 0, 4, 0, 5, 1, 2});
  expect_error(ErrorKind::kData, {(folder / "a").string(), "258", "row 1, column 1", "0 to 255"},
               [&] { read_label(folder / "a"); });
}

TEST(Label, APictureIsNoLabel) {
  const TemporaryFolder folder;
  write_png(folder / "rgb", noise({4, 4, 3}, 1));
  expect_error(ErrorKind::kData, {(folder / "rgb").string(), "RGB", "one class id per pixel"},
               [&] { read_label(folder / "rgb"); });
  write_raw_png(folder / "alpha", 1, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA, {9, 7});
  expect_error(ErrorKind::kData, {"grey picture with alpha"}, [&] { read_label(folder / "alpha"); });
  write_jpeg(folder / "jpeg", noise({4, 4, 3}, 1));
  expect_error(ErrorKind::kData, {"JPEG", "must be PNG"}, [&] { read_label(folder / "jpeg"); });
}

TEST(Jpeg, KeepsAPictureWithinAFewLevels) {
  const TemporaryFolder folder;
  const at::Tensor picture = smooth_picture(45, 67);
  write_jpeg(folder / "a", picture, 95);
  const at::Tensor read = read_image(folder / "a");
  ASSERT_EQ(read.sizes(), picture.sizes());
  const at::Tensor error = (read.to(at::kFloat) - picture.to(at::kFloat)).abs();
  EXPECT_LT(error.mean().item<float>(), testing::kJpegMeanError);
  EXPECT_LT(error.max().item<float>(), testing::kJpegWorstError);
  EXPECT_TRUE(read_image(folder / "a").equal(read));
}

TEST(Image, APhotoIsTurnedAsItsExifDataSay) {
  const TemporaryFolder folder;
  write_jpeg(folder / "plain.jpg", smooth_picture(10, 6), 95);
  const at::Tensor stored = read_image(folder / "plain.jpg");
  const std::string bytes = bytes_of(folder / "plain.jpg");
  const at::Tensor exchanged = stored.transpose(0, 1);  // the first row of the file is the left column
  const at::Tensor upright[] = {stored,    stored.flip(1),    stored.flip({0, 1}),    stored.flip(0),
                                exchanged, exchanged.flip(1), exchanged.flip({0, 1}), exchanged.flip(0)};
  for (uint32_t orientation = 1; orientation <= 8; ++orientation) {
    for (const bool little_endian : {true, false}) {
      const std::string segment = testing::exif_segment(
          little_endian, {{0x010F, 2, 4, 0}, {testing::kOrientationTag, testing::kShort, 1, orientation}});
      put(folder / "turned.jpg", bytes.substr(0, 2) + segment + bytes.substr(2));
      const at::Tensor image = read_image(folder / "turned.jpg");
      EXPECT_TRUE(image.is_contiguous() && image.equal(upright[orientation - 1])) << orientation;
      EXPECT_TRUE(read_image(folder / "turned.jpg", Orientation::kAsStored).equal(stored)) << orientation;
      // The sides of a picture that is not square tell a quarter turn.
      EXPECT_EQ(ImageFile(folder / "turned.jpg").turns_unseen(), orientation > 1 && orientation < 5);
      EXPECT_FALSE(ImageFile(folder / "turned.jpg", Orientation::kAsStored).turns_unseen());
    }
  }
}

TEST(Image, DamagedExifDataLeaveAPhotoAsItIsStored) {
  const TemporaryFolder folder;
  write_jpeg(folder / "plain.jpg", smooth_picture(10, 6), 95);
  const at::Tensor stored = read_image(folder / "plain.jpg");
  const std::string bytes = bytes_of(folder / "plain.jpg");
  const std::array<uint32_t, 4> turned{testing::kOrientationTag, testing::kShort, 1, 6};
  std::vector<std::string> segments{
      testing::exif_segment(true, {}),
      testing::exif_segment(false, {{testing::kOrientationTag, testing::kShort, 1, 0}}),
      testing::exif_segment(true, {{testing::kOrientationTag, testing::kShort, 1, 9}}),
      testing::exif_segment(true, {{testing::kOrientationTag, 4, 1, 6}}),
      testing::exif_segment(true, {{testing::kOrientationTag, testing::kShort, 2, 6}}),
      testing::exif_segment(true, {turned}, 0xFFFFFFFF),
      testing::exif_segment(true, {turned}, 9)};
  const std::string whole = testing::exif_segment(true, {turned});
  for (std::size_t size = 4; size < whole.size() - 2; ++size) {  // cut before the value is complete
    std::string cut = whole.substr(0, size);
    cut[2] = 0;
    cut[3] = static_cast<char>(size - 2);
    segments.push_back(cut);
  }
  for (const std::string& segment : segments) {
    put(folder / "odd.jpg", bytes.substr(0, 2) + segment + bytes.substr(2));
    EXPECT_TRUE(read_image(folder / "odd.jpg").equal(stored)) << segment.size();
  }
}

TEST(Image, TheFormatIsToldByTheFirstBytesNotByTheName) {
  const TemporaryFolder folder;
  const at::Tensor picture = smooth_picture(8, 8);
  write_png(folder / "a.jpg", picture);
  EXPECT_TRUE(read_image(folder / "a.jpg").equal(picture));
}

TEST(Image, OtherFilesAreErrorsThatNameThem) {
  const TemporaryFolder folder;
  put(folder / "a.gif", "GIF89a...");
  expect_error(ErrorKind::kData, {(folder / "a.gif").string(), "neither JPEG nor PNG", "47 49 46 38"},
               [&] { read_image(folder / "a.gif"); });
  put(folder / "empty.png", "");
  expect_error(ErrorKind::kData, {"empty.png", "the file is empty"},
               [&] { read_image(folder / "empty.png"); });
  expect_error(ErrorKind::kData, {"none.png", "No such file"}, [&] { read_image(folder / "none.png"); });
}

TEST(Image, AHeaderThatClaimsGigabytesIsRefusedBeforeTheyAreAllocated) {
  const TemporaryFolder folder;
  write_jpeg(folder / "a.jpg", smooth_picture(8, 8));
  std::string bytes = bytes_of(folder / "a.jpg");
  const auto frame = bytes.find("\xFF\xC0");
  ASSERT_NE(frame, std::string::npos);
  for (int i = 5; i < 9; ++i) bytes[frame + i] = '\xF0';  // height and width 61680
  put(folder / "a.jpg", bytes);
  expect_error(ErrorKind::kData, {"61680x61680"}, [&] { read_image(folder / "a.jpg"); });
}

TEST(Image, AHeaderThatClaimsMoreThanTheFileHoldsIsRefusedBeforeMemoryIsTaken) {
  const TemporaryFolder folder;
  write_jpeg(folder / "a.jpg", smooth_picture(8, 8));
  std::string bytes = bytes_of(folder / "a.jpg");
  const auto frame = bytes.find("\xFF\xC0");
  bytes[frame + 5] = bytes[frame + 7] = '\x2C';  // 11272 x 11272 pixels are allowed
  put(folder / "a.jpg", bytes);
  expect_error(ErrorKind::kData, {"11272x11272", "truncated"}, [&] { read_image(folder / "a.jpg"); });
  // All pixels equal: as small as a picture of its size can be.
  const at::Tensor plain = at::full({2000, 2000, 3}, 7, at::kByte);
  write_png(folder / "b.png", plain);
  EXPECT_TRUE(read_image(folder / "b.png").equal(plain));
  write_jpeg(folder / "b.jpg", plain, 1);
  EXPECT_EQ(read_image(folder / "b.jpg").size(0), 2000);
}

TEST(Png, AChunkThatClaimsMoreThanTheFileHoldsIsRefusedBeforeMemoryIsTaken) {
  const TemporaryFolder folder;
  write_png(folder / "a.png", smooth_picture(8, 8));
  std::string bytes = bytes_of(folder / "a.png");
  bytes.insert(33, std::string("\x07\0\0\0iTXt", 8));  // behind the header: 112 MiB of text
  put(folder / "a.png", bytes);
  expect_error(ErrorKind::kData, {"a.png", "too large"}, [&] { read_image(folder / "a.png"); });
}

TEST(Jpeg, AProgressiveFileOfManyScansIsRefused) {
  const TemporaryFolder folder;
  for (const int scans : {10, 150}) {
    put(folder / "a.jpg", testing::progressive_jpeg(64, 64, scans));
    const auto read = [&] { return read_image(folder / "a.jpg"); };
    if (scans < 100) {
      EXPECT_EQ(read().sizes(), (at::IntArrayRef{64, 64, 3}));
    } else {
      expect_error(ErrorKind::kData, {"more than 100 scans"}, read);
    }
  }
}

TEST(Jpeg, CoefficientsOfMoreThanAGibibyteAreRefused) {
  const TemporaryFolder folder;
  std::string bytes = testing::jpeg(8, 8, {.components = 4, .progressive = true});
  const auto frame = bytes.find("\xFF\xC2");
  ASSERT_NE(frame, std::string::npos);
  for (const int i : {5, 7}) {  // 11585 x 11585 pixels, which are allowed, of four channels
    bytes[frame + i] = '\x2D';
    bytes[frame + i + 1] = '\x41';
  }
  put(folder / "a.jpg", bytes + std::string(1 << 18, 'x'));
  expect_error(ErrorKind::kData, {"a.jpg", "takes more than 1 GiB"}, [&] { read_image(folder / "a.jpg"); });
}

TEST(Image, AFileCutOffAnywhereIsAnError) {
  const TemporaryFolder folder;
  const at::Tensor picture = noise({40, 40, 3}, 5);
  write_jpeg(folder / "whole.jpg", picture);
  write_png(folder / "whole.png", picture);
  for (const std::string name : {"whole.jpg", "whole.png"}) {
    const std::string bytes = bytes_of(folder / name);
    int tried = 0;
    for (std::size_t length = 0; length < bytes.size();
         length += length + 8 < bytes.size() && length > 40 ? 7 : 1) {
      put(folder / "cut", bytes.substr(0, length));
      SCOPED_TRACE(name + " cut to " + std::to_string(length) + " of " + std::to_string(bytes.size()));
      expect_error(ErrorKind::kData, {(folder / "cut").string()}, [&] { read_image(folder / "cut"); });
      ++tried;
    }
    EXPECT_GT(tried, 100);
  }
}

TEST(Image, FlippedBitsGiveAnImageOrAnErrorNeverACrash) {
  const TemporaryFolder folder;
  const at::Tensor picture = noise({24, 24, 3}, 6);
  write_jpeg(folder / "whole.jpg", picture);
  write_png(folder / "whole.png", picture);
  Random random(7);
  int errors = 0;
  for (const std::string name : {"whole.jpg", "whole.png"}) {
    const std::string bytes = bytes_of(folder / name);
    for (int round = 0; round < 400; ++round) {
      std::string broken = bytes;
      for (int i = 0; i < 3; ++i)
        broken[random.below(broken.size())] ^= static_cast<char>(1 << random.below(8));
      put(folder / "broken", broken);
      try {
        const at::Tensor image = read_image(folder / "broken");
        EXPECT_EQ(image.size(2), 3);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kData);
        ++errors;
      }
    }
  }
  EXPECT_GT(errors, 400);  // every flip in a PNG breaks a checksum
}

TEST(Image, WritesAreAtomic) {
  const TemporaryFolder folder;
  put(folder / "a.png", "old");
  {
    const testing::FileSizeLimit limit(100);
    expect_error(ErrorKind::kOutput, {"a.png", "File too large"},
                 [&] { write_png(folder / "a.png", noise({99, 99}, 8)); });
  }
  EXPECT_EQ(bytes_of(folder / "a.png"), "old");
}

TEST(Image, ReadsAPublishedStreetScene) {
  const std::filesystem::path data = "../shared/data/camvid/test";
  if (!std::filesystem::exists(data)) GTEST_SKIP() << "no CamVid at " << data;
  const at::Tensor image = read_image(data / "0001TP_008550.jpg");
  const at::Tensor label = read_label(data.string() + "annot/0001TP_008550.png");
  EXPECT_EQ(image.sizes(), (at::IntArrayRef{360, 480, 3}));
  EXPECT_EQ(label.sizes(), (at::IntArrayRef{360, 480}));
  EXPECT_LE(label.max().item<int>(), 11);
  EXPECT_GT(image.to(at::kFloat).std().item<float>(), 30);
}

}  // namespace
}  // namespace palimpsest::io
