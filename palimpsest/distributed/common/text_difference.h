#pragma once

#include <optional>
#include <string>

namespace palimpsest::distributed {

/// The first line in which two texts differ.
struct TextDifference {
  int line;                 ///< counts from 1
  std::string left, right;  ///< without the line end; "(nothing)" after the last line
};

/// Returns nothing if the texts are equal.
std::optional<TextDifference> first_difference(const std::string& left, const std::string& right);

}  // namespace palimpsest::distributed
