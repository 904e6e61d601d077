#include "palimpsest/distributed/common/text_difference.h"

#include <sstream>

namespace palimpsest::distributed {

std::optional<TextDifference> first_difference(const std::string& left, const std::string& right) {
  if (left == right) return std::nullopt;
  std::istringstream left_lines(left), right_lines(right);
  TextDifference difference{0, "", ""};
  while (difference.left == difference.right) {
    ++difference.line;
    const bool has_left = static_cast<bool>(std::getline(left_lines, difference.left));
    const bool has_right = static_cast<bool>(std::getline(right_lines, difference.right));
    if (!has_left) difference.left = "(nothing)";
    if (!has_right) difference.right = "(nothing)";
    // The texts differ in nothing but the end of the last line.
    if (!has_left && !has_right) return std::nullopt;
  }
  return difference;
}

}  // namespace palimpsest::distributed
