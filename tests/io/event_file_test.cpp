#include "palimpsest/io/event_file.h"

#include "palimpsest/base/error.h"
#include "palimpsest/io/atomic_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

// tests/cli/test_report.py reads the events of a training with the package tensorboard.
namespace palimpsest::io {
namespace {

using testing::expect_error;
using testing::TemporaryFolder;

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

/// The messages of a file. Every length and payload must have its checksum, and no byte may be left.
std::vector<std::string> messages(const std::filesystem::path& path) {
  const std::string bytes = read_file(path);
  std::vector<std::string> result;
  size_t at = 0;
  while (at + 12 <= bytes.size()) {
    const auto length = number_at<uint64_t>(bytes, at);
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    result.push_back(bytes.substr(at + 12, length));
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 12 + length), masked_crc32c(result.back()));
    at += 16 + length;
  }
  EXPECT_EQ(at, bytes.size());
  return result;
}

TEST(Crc32c, IsThatOfTheStandard) {
  // RFC 3720, appendix B.4.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
}

TEST(EventFile, EachCallIsARecordWithChecksums) {
  const TemporaryFolder folder;
  EventFile events(folder / "", 0);
  EXPECT_EQ(events.path().filename(), "events.out.tfevents.0000000000.palimpsest");
  events.add_scalars(300, {{"loss", 0.5}, {"lr", 0.25}});
  events.add_png(301, "picture", "PNG", 2, 3);
  events.add_histogram(
      302, "h", {.low = 1, .high = 2, .sum = 3, .sum_of_squares = 5, .upper_limits = {2}, .counts = {4}});
  const auto records = messages(events.path());  // the file is still open: nothing waits in a buffer
  ASSERT_EQ(records.size(), 4u);
  EXPECT_NE(records[0].find("\x1a\x0d"
                            "brain.Event:2"),
            std::string::npos);
  // Field 1 is the time; field 2 the step, 300 = 0xac 0x02; field 5 the summary with two values.
  const std::string half("\0\0\0\x3f", 4), quarter("\0\0\x80\x3e", 4);
  EXPECT_EQ(records[1].substr(9), std::string("\x10\xac\x02\x2a\x18", 5) + "\x0a\x0b\x0a\x04loss\x15" + half +
                                      "\x0a\x09\x0a\x02lr\x15" + quarter);
  events.add_scalars(303, {});
  EXPECT_EQ(messages(events.path()).size(), 4u) << "no value, no record";
}

TEST(EventFile, ALaterFileMarksTheRestartAndReplacesThoseThatBeginThereOrLater) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "events.out.tfevents.17.other", "of another program");
  for (const int64_t step : {0, 11, 21}) EventFile(folder / "", step).add_scalars(step, {{"loss", 1}});
  const EventFile again(folder / "", 11);
  EXPECT_EQ(messages(again.path()).size(), 2u);
  EXPECT_EQ(messages(again.path())[1].substr(9),
            std::string("\x10\x0b\x3a\x02\x08\x01", 6));  // SessionLog START
  EXPECT_TRUE(std::filesystem::exists(folder / "events.out.tfevents.0000000000.palimpsest"));
  EXPECT_FALSE(std::filesystem::exists(folder / "events.out.tfevents.0000000021.palimpsest"));
  remove_event_files(folder / "");
  EXPECT_FALSE(std::filesystem::exists(again.path()));
  EXPECT_TRUE(std::filesystem::exists(folder / "events.out.tfevents.17.other"));
}

TEST(EventFile, AFolderThatIsMissingIsAnOutputError) {
  const TemporaryFolder folder;
  expect_error(ErrorKind::kOutput, {"events.out.tfevents."}, [&] { EventFile(folder / "none", 0); });
  EventFile nothing;
  nothing.add_scalars(1, {{"loss", 1}});  // writes nothing
}

TEST(EventFile, LimitsAndCountsOfDifferentNumberAreRefused) {
  EventFile nothing;
  EXPECT_THROW(nothing.add_histogram(1, "h", {.upper_limits = {1, 2}, .counts = {1}}), std::invalid_argument);
}

}  // namespace
}  // namespace palimpsest::io
