#pragma once

#include "palimpsest/base/shape.h"
#include "palimpsest/kernels/abn.h"
#include "palimpsest/kernels/cpu/abn/partition.h"

#include <cstdint>
#include <vector>

namespace palimpsest::kernels::cpu::abn {

/// The channels of NormalizedChannels in the pieces of NCHW (planes and strips), whose sweeps are theirs alone.
class SlottedChannels {
 public:
  SlottedChannels(const Shape3& shape, const NormalizedChannels& channels)
      : shape_(shape), count_(channels.count) {
    if (!channels.values) return;
    slots_.assign(static_cast<std::size_t>(shape.c), kNone);
    for (int64_t k = 0; k < count_; ++k)
      if (channels.index[k] >= 0) slots_[static_cast<std::size_t>(channels.index[k])] = k;
  }

  bool any() const { return !slots_.empty(); }
  bool contains(int64_t c) const { return any() && slot(c) != kNone; }

  /// Calls function(some, is_slotted) for the parts that make up a piece: each of these channels alone, and the runs of
  /// others between them.
  template <class Function>
  void each_run(const Piece& piece, const Function& function) const {
    const int64_t last = piece.first_channel + piece.channels;
    for (int64_t begin = piece.first_channel, end; begin < last; begin = end) {
      const bool is_slotted = contains(begin);
      end = begin + 1;
      while (!is_slotted && end < last && !contains(end)) ++end;
      function(channels_of(piece, begin, end), is_slotted);
    }
  }

  /// Calls function(row, offset, in_slots) for each row of a piece of one of these channels: a block of one row, where it
  /// lies in the tensor, and where its x-hat lies in NormalizedChannels::values.
  template <class Function>
  void each_row(const Piece& piece, const Function& function) const {
    const int64_t width = piece.block.width, image = shape_.c * shape_.s;
    for (int64_t row = 0; row < piece.block.rows; ++row) {
      const int64_t offset = piece.offset + row * piece.block.stride;
      const int64_t in_slots =
          (offset / image * count_ + slot(piece.first_channel)) * shape_.s + offset % shape_.s;
      function(Block{.rows = 1, .stride = width, .width = width}, offset, in_slots);
    }
  }

 private:
  static constexpr int64_t kNone = -1;

  int64_t slot(int64_t c) const { return slots_[static_cast<std::size_t>(c)]; }

  /// The channels [begin, end) of a piece.
  Piece channels_of(Piece piece, int64_t begin, int64_t end) const {
    if (end - begin == piece.channels) return piece;  // a plane, or a part of one
    piece.offset += (begin - piece.first_channel) * shape_.s;
    piece.block.width = (end - begin) * shape_.s;
    piece.first_channel = begin;
    piece.channels = end - begin;
    return piece;
  }

  Shape3 shape_;
  int64_t count_;
  std::vector<int64_t> slots_;  // by channel; empty if no channel has one
};

}  // namespace palimpsest::kernels::cpu::abn
