#pragma once

#include "palimpsest/base/host_device.h"
#include "palimpsest/kernels/abn.h"

#include <cstdint>

/// Which channels of a layer have their normalized x saved beside the layer's saved tensor, in slots: those
/// that are non-invertible (formulas/invertibility.h) for the weight, the bias and the residual of this pass.
/// The host decides how many slots there are. It may do so before it knows the values.
///
/// A channel is `wanted` if it is non-invertible, and `near` if it is or may become so within one step of an
/// optimizer. Slots are given to wanted channels in their order. Which channels read their slot in backward
/// depends on the values alone, so two passes with the same values agree, whatever their number of slots, if
/// it suffices.
namespace palimpsest::kernels {

/// What a call reports to the host, which may read it at any time without waiting: each number is written at
/// once.
struct SlotReport {
  static constexpr int64_t kUnknown = -1;

  int64_t counts = kUnknown;    ///< packed: see pack_counts
  unsigned long long late = 0;  ///< grows by the wanted channels that found no slot
};

/// The numbers of wanted channels and of near ones. Near channels include the wanted ones.
struct SlotCounts {
  int64_t wanted = 0, near = 0;
};
PALIMPSEST_HOST_DEVICE constexpr int64_t pack_counts(SlotCounts counts) {
  return counts.near << 32 | counts.wanted;
}
constexpr SlotCounts unpack_counts(int64_t packed) {
  return {packed & 0xffffffff, packed >> 32};
}

/// The tensors of one call.
struct ChannelSlots {
  const void* weight = nullptr;  ///< (C), accumulate_t<dtype>; null: 1
  const void* bias = nullptr;    ///< (C), accumulate_t<dtype>; null: 0
  const void* residual =
      nullptr;        ///< (N, C, S) of `dtype` in `layout`, of which a sample is read; may be null
  int64_t slots = 0;  ///< at most C
  /// (slots), or null if every channel is saved anyway or none can be. Slot k becomes the number c of its
  /// channel, or c - C if slot k is unused: then channel c, which is not wanted, is saved in vain. All
  /// channels differ.
  int64_t* index = nullptr;
  SlotReport* report = nullptr;
  bool counts_late = true;  ///< false: a pass that runs again; report->late stays as it is
  bool counts_near = true;  ///< false: near channels are only the wanted ones, which is a fifth of the work
};

/// A choice that is left to another call: the arguments of choose_slots.
struct SlotChoice {
  AbnProblem problem;
  ChannelSlots tensors;
};

namespace cpu {

/// Fills tensors.index and tensors.report. `problem` is the layer's, `saved` is not read. Where the saved
/// tensor lies before the activation, its activation is the identity here, and there is no residual.
void choose_slots(const AbnProblem& problem, const ChannelSlots& tensors);

/// Copy the channels of `count` slots between `full`, (N, C, S), and `part`, (N, count, S). Both are contiguous
/// in problem.layout and of problem.dtype; problem.shape is that of `full`. `index` is that of choose_slots:
/// an unused slot has a channel, which is gathered, and which scatter_channels leaves as it is.
void gather_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* full,
                     void* part);
void scatter_channels(const AbnProblem& problem, const int64_t* index, int64_t count, const void* part,
                      void* full);

/// Some pixels of a channels-last tensor, and the channels [first_channel, first_channel + channels) of them.
struct Pixels {
  int64_t first, count, first_channel, channels;
};
/// The share of these pixels in gather_channels and scatter_channels, by the calling thread. `prefetch`: for pixels
/// that are not in cache, whose lines it reads ahead.
void gather_pixels(const AbnProblem& problem, Pixels pixels, const PartOfChannels& copied, const void* full,
                   bool prefetch);
void scatter_pixels(const AbnProblem& problem, Pixels pixels, const PartOfChannels& copied, void* full);

}  // namespace cpu

/// The same function as plain loops, which is the reference of the tests.
namespace reference {

void choose_slots(const AbnProblem& problem, const ChannelSlots& tensors);

}  // namespace reference
}  // namespace palimpsest::kernels
