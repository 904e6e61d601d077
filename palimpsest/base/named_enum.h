#pragma once

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// One value of an enum and a name for it.
template <class Enum>
struct EnumName {
  Enum value;
  std::string_view name;
  bool is_listed = true;  ///< false: an old name, which is still accepted but no longer shown
};

/// The names of an enum's values in options, files and messages, one row per name. The first row of a value
/// has the name that is written; further rows of the same value are aliases.
///   inline constexpr NamedEnum kColours{"colour", {EnumName{Colour::kRed, "red"}, {Colour::kBlue, "blue"}}};
template <class Enum, std::size_t kRows>
class NamedEnum {
 public:
  /// `what` is the enum's name in messages.
  constexpr NamedEnum(std::string_view what, const EnumName<Enum> (&rows)[kRows])
      : what_(what), rows_(std::to_array(rows)) {}

  constexpr std::optional<Enum> find(std::string_view name) const {
    for (const auto& row : rows_)
      if (row.name == name) return row.value;
    return std::nullopt;
  }

  /// Returns the value with this name. Throws Error(kUsage) with the nearest listed name if there is none.
  constexpr Enum parse(std::string_view name) const {
    if (const auto value = find(name)) return *value;
    throw Error(ErrorKind::kUsage, unknown(name));
  }

  /// Returns the name of the value. Throws Error(kInternal) if no row has the value.
  constexpr std::string_view name(Enum value) const {
    for (const auto& row : rows_)
      if (row.value == value) return row.name;
    throw Error(ErrorKind::kInternal,
                std::string(what_) + " has no name: " + std::to_string(static_cast<int>(value)));
  }

  /// Returns the listed names, in the order of the rows.
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    result.reserve(kRows);
    for (const auto& row : rows_)
      if (row.is_listed) result.emplace_back(row.name);
    return result;
  }

  /// Returns "unknown WHAT 'name'; did you mean ...", for callers that throw another type of error.
  std::string unknown(std::string_view name) const { return unknown_name_message(what_, name, names()); }

  constexpr auto begin() const { return rows_.begin(); }
  constexpr auto end() const { return rows_.end(); }
  static constexpr std::size_t size() { return kRows; }

 private:
  std::string_view what_;
  std::array<EnumName<Enum>, kRows> rows_;
};

}  // namespace palimpsest
