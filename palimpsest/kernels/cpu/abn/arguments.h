#pragma once

// Only for units of one instruction set, as simd/vector.h. The arguments per channel of a sweep: one value for a plane,
// else one per column.

#include "palimpsest/kernels/cpu/simd/loops.h"
#include "palimpsest/kernels/cpu/simd/storage.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {
namespace {

/// From where a sweep reads an argument of the columns of a block.
template <class T>
struct ColumnValues {
  const T* values = nullptr;
  const T* by_parity = nullptr;  ///< for steps in Order::kAlternate: see ColumnArgument
};

template <class T, bool kPlane>
struct ArgumentOf {
  using type = const T*;
};
template <class T>
struct ArgumentOf<T, false> {
  using type = ColumnValues<T>;
};
/// An argument of a sweep over planes or over columns.
template <class S, bool kPlane>
using Argument = typename ArgumentOf<accumulate_t<S>, kPlane>::type;

/// Where in ColumnValues::by_parity the odd columns begin: a line behind the last even one of kMaxColumns, because at
/// 4 KiB they would fall on the same sets of a cache.
template <class T>
constexpr int64_t kOddColumns = kMaxColumns / 2 + kLineBytes / static_cast<int64_t>(sizeof(T));

/// An argument of columns, and a copy of it that is arranged by parity if sweeps over S are in Order::kAlternate: such
/// a step reads the values of its even columns in one vector and those of its odd columns in another.
template <class S>
class ColumnArgument {
  using T = accumulate_t<S>;

 public:
  PALIMPSEST_HOST_DEVICE ColumnArgument(Block block, const T* values, bool is_read) : ColumnArgument(values) {
    if constexpr (kArranges)
      if (is_read) by_parity(block.width, values, even(), odd());
  }
  ColumnArgument(const ColumnArgument&) = delete;
  ColumnArgument& operator=(const ColumnArgument&) = delete;
  PALIMPSEST_HOST_DEVICE operator ColumnValues<T>() const { return {values_, by_parity_}; }

 protected:
  static constexpr bool kArranges = kAnyOrder<S> == Order::kAlternate;

  /// Not arranged yet.
  PALIMPSEST_HOST_DEVICE explicit ColumnArgument(const T* values) : values_(values) {}

  PALIMPSEST_HOST_DEVICE T* even() { return by_parity_; }
  PALIMPSEST_HOST_DEVICE T* odd() { return by_parity_ + kOddColumns<T>; }

 private:
  const T* values_;
  // Spread stores vectors across the end of the even columns, and of the odd ones.
  alignas(kLineBytes) T by_parity_[kArranges ? 2 * kOddColumns<T> : 1];
};

/// Returns what makes the arguments of the columns of a block, from their values and whether a sweep reads them.
template <class S>
PALIMPSEST_HOST_DEVICE auto column_arguments(const Block& block) {
  return [&block](const accumulate_t<S>* values, bool is_read) {
    return ColumnArgument<S>(block, values, is_read);
  };
}

/// An argument in vectors: one value for a whole plane, else one value per column.
template <class T, class V, bool kPlane>
class PerChannel {
 public:
  PALIMPSEST_HOST_DEVICE explicit PerChannel(const T* value) : plane_(broadcast<V>(*value)) {}

  template <class Where>
  PALIMPSEST_HOST_DEVICE V at(Where) const {
    return plane_;
  }

 private:
  V plane_;
};

template <class T, class V>
class PerChannel<T, V, false> {
 public:
  PALIMPSEST_HOST_DEVICE explicit PerChannel(ColumnValues<T> columns) : columns_(columns) {}

  template <Order kOrder, int kPart>
  PALIMPSEST_HOST_DEVICE V at(Place<kOrder, kPart> place) const {
    if constexpr (kOrder == Order::kHalves) {
      return load<V>(columns_.values + place.template own<T, V>().column);
    } else {
      // In bytes: the compiler does not know that steps begin at even columns.
      const auto* const first = reinterpret_cast<const char*>(columns_.by_parity + kPart * kOddColumns<T>);
      return load<V>(first + place.column * static_cast<int64_t>(sizeof(T) / 2));
    }
  }

 private:
  ColumnValues<T> columns_;
};

}  // namespace
}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
