#include "palimpsest/base/segment_log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace palimpsest {
namespace {

/// Counts how often it is asked, and answers with the count.
struct Counter {
  int asked = 0;
  int get() {
    return SegmentLog::get([&] { return ++asked; });
  }
};

TEST(SegmentLog, WithoutASegmentEveryResultIsComputed) {
  Counter counter;
  EXPECT_EQ(counter.get(), 1);
  EXPECT_EQ(counter.get(), 2);
}

TEST(SegmentLog, EveryFurtherRunGetsTheResultsOfTheFirst) {
  Counter counter;
  SegmentLog log;
  {
    const SegmentLog::Recording recording(log);
    EXPECT_EQ(counter.get(), 1);
    EXPECT_EQ(counter.get(), 2);
  }
  for (int run = 0; run < 2; ++run) {
    const SegmentLog::Replay replay(log);
    EXPECT_EQ(counter.get(), 1);
    EXPECT_EQ(counter.get(), 2);
  }
  EXPECT_EQ(counter.get(), 3);  // outside
}

TEST(SegmentLog, SegmentsNest) {
  Counter counter;
  SegmentLog outer, inner;
  {
    const SegmentLog::Recording recording(outer);
    EXPECT_EQ(counter.get(), 1);
    const SegmentLog::Recording within(inner);
    EXPECT_EQ(counter.get(), 2);
  }
  SegmentLog again;  // the inner segment of the second run of the outer one
  {
    const SegmentLog::Replay replay(outer);
    EXPECT_EQ(counter.get(), 1);
    const SegmentLog::Recording within(again);
    EXPECT_EQ(counter.get(), 2);
  }
  const SegmentLog::Replay replay(again);
  EXPECT_EQ(counter.get(), 2);
  EXPECT_EQ(counter.asked, 2);
}

TEST(SegmentLog, AReplayWithinARecordingIsNotRecorded) {
  Counter counter;
  SegmentLog outer, inner;
  const SegmentLog::Recording recording(outer);
  {
    const SegmentLog::Recording within(inner);
    EXPECT_EQ(counter.get(), 1);
  }
  {
    const SegmentLog::Replay replay(inner);
    EXPECT_EQ(counter.get(), 1);
  }
  EXPECT_EQ(counter.get(), 2);
  const SegmentLog::Replay replay(outer);
  EXPECT_EQ(counter.get(), 1);
  EXPECT_EQ(counter.get(), 2);
}

TEST(SegmentLog, ARunWithMoreResultsThanTheFirstIsAnError) {
  SegmentLog log;
  const SegmentLog::Replay replay(log);
  Counter counter;
  try {
    counter.get();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("which had 0"), std::string::npos) << error.what();
  }
}

TEST(SegmentLog, BelongsToItsThread) {
  SegmentLog log;
  const SegmentLog::Replay replay(log);
  std::thread([] {
    Counter counter;
    EXPECT_EQ(counter.get(), 1);
  }).join();
}

}  // namespace
}  // namespace palimpsest
