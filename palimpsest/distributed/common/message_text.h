#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// Parts of messages.
namespace palimpsest::distributed {

/// Returns "rank 3 of 8", "ranks 1, 2 of 8", or of many ranks the first ones and how many more there are.
std::string rank_list(const std::vector<int>& ranks, int size);

/// Returns the first line of a message of c10d or Gloo, without the place in their source that some begin
/// with, in a form that a terminal shows as one line.
std::string reason_of(std::string_view message);

/// Returns a message with its lines joined, at most 2,000 bytes of it.
std::string one_line_of(const std::string& text);

/// The first line in which two texts differ.
struct TextDifference {
  int line;                 ///< counts from 1
  std::string left, right;  ///< without the line end; "(nothing)" after the last line
};

/// Returns nothing if the texts are equal.
std::optional<TextDifference> first_difference(const std::string& left, const std::string& right);

}  // namespace palimpsest::distributed
