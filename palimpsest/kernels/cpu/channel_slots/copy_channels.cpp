#include "palimpsest/base/parallel.h"
#include "palimpsest/kernels/channel_slots.h"

#include <cstring>

namespace palimpsest::kernels::cpu {
namespace {

// The processor cannot foresee the cache lines of the next pixels. 11 channels of (32, 512, 28, 28) in f32:
// 3.5 -> 2.3 ms.
constexpr int64_t kPixelsAhead = 16;

enum class Direction { kGather, kScatter };

/// Copies channels between `full` and `part`, the tensors of channel_slots.h; the direction says which one is written.
/// A value has kSize bytes. Nothing is allocated: it runs in the passes' threads, which must not throw.
template <Direction kDirection, std::size_t kSize, class Full, class Part>
class ChannelCopy {
  static constexpr auto kStep = static_cast<int64_t>(kSize);
  static constexpr bool kWrites = kDirection == Direction::kScatter;

 public:
  /// Of the channels [first_channel, first_channel + channels).
  ChannelCopy(const AbnProblem& problem, const int64_t* index, int64_t count, Full* full, Part* part,
              int64_t first_channel, int64_t channels)
      : shape_(problem.shape),
        index_(index),
        count_(count),
        full_(full),
        part_(part),
        first_channel_(first_channel),
        channels_(channels) {}

  void images() const {
    const int64_t plane = shape_.s * kStep;
    parallel_tasks(shape_.n * count_, [&](int64_t i) {
      const int64_t image = i / count_, channel = channel_of(i % count_);
      if (channel >= 0) copy(full_ + (image * shape_.c + channel) * plane, part_ + i * plane, plane);
    });
  }

  /// The pixels [begin, end) of channels-last.
  void pixels(int64_t begin, int64_t end, bool prefetch) const {
    Places places;
    for (int64_t k = 0; k < count_;) {
      int64_t found = 0;
      for (; k < count_ && found < kPlaces; ++k)
        if (const int64_t channel = channel_of(k); channel >= 0)
          places[found++] = {channel * kStep, k * kStep};
      if (found > 0) pixels_at(places, found, begin, end, prefetch);
    }
  }

 private:
  /// Where a channel lies in a pixel of `full` and in one of `part`, in bytes.
  struct PlaceInPixel {
    int64_t full, part;
  };
  static constexpr int64_t kPlaces = 256;
  using Places = PlaceInPixel[kPlaces];

  void pixels_at(const Places& places, int64_t found, int64_t begin, int64_t end, bool prefetch) const {
    const int64_t step = shape_.c * kStep, slots = count_ * kStep, pixels = shape_.n * shape_.s;
    const int64_t ahead = kPixelsAhead * step;
    auto* whole = full_ + begin * step;
    auto* slot = part_ + begin * slots;
    for (int64_t pixel = begin; pixel < end; ++pixel, whole += step, slot += slots) {
      // Beyond `end`, too: there the next call reads.
      const bool reads_on = prefetch && pixel + kPixelsAhead < pixels;
      for (int64_t i = 0; i < found; ++i) {
        const PlaceInPixel at = places[i];
        if (reads_on) __builtin_prefetch(whole + ahead + at.full);
        copy(whole + at.full, slot + at.part, kStep);
      }
    }
  }

  /// Returns the channel of slot k; -1 if it is not to be copied.
  int64_t channel_of(int64_t k) const {
    const bool is_used = index_[k] >= 0;
    const int64_t channel = is_used ? index_[k] : index_[k] + shape_.c;
    const bool is_here = channel >= first_channel_ && channel < first_channel_ + channels_;
    return (is_used || !kWrites) && is_here ? channel : -1;
  }

  static void copy(Full* whole, Part* slot, int64_t bytes) {
    if constexpr (kWrites)
      std::memcpy(whole, slot, static_cast<std::size_t>(bytes));
    else
      std::memcpy(slot, whole, static_cast<std::size_t>(bytes));
  }

  Shape3 shape_;
  const int64_t* index_;
  int64_t count_;
  Full* full_;
  Part* part_;
  int64_t first_channel_, channels_;
};

/// Calls function(copy) with the ChannelCopy of these tensors.
template <Direction kDirection, class Full, class Part, class Function>
void with_copy(const AbnProblem& problem, const int64_t* index, int64_t count, Full* full, Part* part,
               int64_t first_channel, int64_t channels, const Function& function) {
  const auto call = [&]<std::size_t kSize>() {
    function(ChannelCopy<kDirection, kSize, Full, Part>(problem, index, count, full, part, first_channel,
                                                        channels));
  };
  switch (size_of(problem.dtype)) {
    case 2:
      return call.template operator()<2>();
    case 4:
      return call.template operator()<4>();
    default:
      return call.template operator()<8>();
  }
}

template <Direction kDirection, class Full, class Part>
void copy_all(const AbnProblem& problem, const int64_t* index, int64_t count, Full* full, Part* part) {
  with_copy<kDirection>(problem, index, count, full, part, 0, problem.shape.c, [&](const auto& copy) {
    if (problem.layout == Layout::kNCHW) return copy.images();
    parallel_ranges(problem.shape.n * problem.shape.s, [&](int64_t begin, int64_t end) {
      copy.pixels(begin, end, kDirection == Direction::kGather);
    });
  });
}

template <Direction kDirection, class Full, class Part>
void copy_some(const AbnProblem& problem, Pixels pixels, const PartOfChannels& copied, Full* full, Part* part,
               bool prefetch) {
  const int64_t end = pixels.first + pixels.count;
  with_copy<kDirection>(problem, copied.index, copied.count, full, part, pixels.first_channel,
                        pixels.channels, [&](const auto& copy) { copy.pixels(pixels.first, end, prefetch); });
}

}  // namespace

void gather_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* full,
                     void* part) {
  copy_all<Direction::kGather>(problem, index, count, static_cast<const std::byte*>(full),
                               static_cast<std::byte*>(part));
}

void scatter_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* part,
                      void* full) {
  copy_all<Direction::kScatter>(problem, index, count, static_cast<std::byte*>(full),
                                static_cast<const std::byte*>(part));
}

void gather_pixels(const AbnProblem& problem, Pixels pixels, const PartOfChannels& copied, const void* full,
                   bool prefetch) {
  copy_some<Direction::kGather>(problem, pixels, copied, static_cast<const std::byte*>(full),
                                static_cast<std::byte*>(copied.part), prefetch);
}

void scatter_pixels(const AbnProblem& problem, Pixels pixels, const PartOfChannels& copied, void* full) {
  copy_some<Direction::kScatter>(problem, pixels, copied, static_cast<std::byte*>(full),
                                 static_cast<const std::byte*>(copied.part), /*prefetch=*/false);
}

}  // namespace palimpsest::kernels::cpu
