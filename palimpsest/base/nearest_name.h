#pragma once

#include <span>
#include <string>
#include <string_view>

namespace palimpsest {

/// Returns the candidate with the smallest edit distance to `name` (inserted, deleted, replaced or swapped
/// letters). If this distance exceeds a third of the length of `name`, such a suggestion would confuse: returns
/// the longest candidate of more than 4 letters that `name` begins with; else, for a `name` of at least 4, the
/// shortest one that begins with it; else "".
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// Returns "unknown WHAT 'name'; did you mean 'nearest'? (known: a, b, c)", without the question if
/// nearest_name() finds no name.
std::string unknown_name_message(std::string_view what, std::string_view name,
                                 std::span<const std::string> candidates);

}  // namespace palimpsest
