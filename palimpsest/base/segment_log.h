#pragma once

#include "palimpsest/base/error.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

/// Results that a segment of a network must not compute twice when backward runs it again
/// (memory/recompute.h): what the processes of a group agreed on. The first run records them, and each
/// further run takes them from there.
///
///   SegmentLog log;                                             // one per segment
///   { const SegmentLog::Recording recording(log); fn(x); }      // the first run
///   { const SegmentLog::Replay replay(log); fn(x); }            // each further run
///
/// Both objects are for the calling thread, end with their scope, and nest as segments do: a segment within
/// another records also while the outer one replays.
class SegmentLog {
  struct Frame {
    SegmentLog* recorded = nullptr;
    const SegmentLog* replayed = nullptr;
    std::size_t next = 0;
    Frame* outer = nullptr;
  };

 public:
  class Recording {
   public:
    explicit Recording(SegmentLog& log) : frame_{&log, nullptr, 0, innermost} { innermost = &frame_; }
    ~Recording() { innermost = frame_.outer; }
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

   private:
    Frame frame_;
  };

  class Replay {
   public:
    explicit Replay(const SegmentLog& log) : frame_{nullptr, &log, 0, innermost} { innermost = &frame_; }
    ~Replay() { innermost = frame_.outer; }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;

   private:
    Frame frame_;
  };

  /// Returns the next result of the innermost replay of this thread, or else compute(), and adds it to the
  /// recordings within that replay. Throws Error(kUsage) if a further run asks for more than the first.
  template <class Compute>
  static auto get(const Compute& compute) -> decltype(compute()) {
    using Result = decltype(compute());
    Frame* replay = innermost;
    while (replay && !replay->replayed) replay = replay->outer;
    const std::shared_ptr<const void> entry =
        replay ? next(*replay) : std::make_shared<const Result>(compute());
    for (Frame* frame = innermost; frame != replay; frame = frame->outer)
      frame->recorded->entries_.push_back(entry);
    return *static_cast<const Result*>(entry.get());
  }

 private:
  static const std::shared_ptr<const void>& next(Frame& frame) {
    const auto& entries = frame.replayed->entries_;
    if (frame.next == entries.size())
      throw Error(ErrorKind::kUsage,
                  "[recompute] the second run of a segment must have the layers of the first, which had " +
                      std::to_string(entries.size()) + " with statistics over a process group, got one more");
    return entries[frame.next++];
  }

  // The dynamic linker merges inline variables: the program and its shared libraries see the same one.
  inline static thread_local Frame* innermost = nullptr;

  std::vector<std::shared_ptr<const void>> entries_;
};

}  // namespace palimpsest
