#include "palimpsest/distributed/common/message_text.h"

#include "palimpsest/base/printable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace palimpsest::distributed {

std::string rank_list(const std::vector<int>& ranks, int size) {
  constexpr std::size_t kMost = 16;
  const auto shown = std::min(ranks.size(), kMost);
  const std::vector<int> first(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(shown));
  std::string list = fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(first, ", "));
  if (shown < ranks.size()) list += fmt::format(" and {} more", ranks.size() - shown);
  return fmt::format("{} of {}", list, size);
}

std::string reason_of(std::string_view message) {
  // "[/build/gloo/transport/tcp/pair.cc:534] Connection closed by peer"
  if (message.starts_with('[')) {
    const auto end = message.find("] ");
    if (end != message.npos && message.substr(0, end).find(".cc:") != message.npos)
      message.remove_prefix(end + 2);
  }
  return printable(shortened(message.substr(0, message.find_first_of("\r\n")), 500));
}

std::string one_line_of(const std::string& text) {
  std::string line = text.substr(0, 2000);
  std::replace_if(line.begin(), line.end(), [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

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
