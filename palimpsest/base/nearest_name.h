#pragma once

#include <span>
#include <string>
#include <string_view>

namespace palimpsest {

/// The candidate with the smallest edit distance (insert, delete, replace, swap of neighbours) to `name`,
/// or "" when none is closer than half of the name's length: then a suggestion would confuse.
std::string nearest_name(std::string_view name, std::span<const std::string> candidates);

/// "unknown WHAT 'name'; did you mean 'nearest'? (known: a, b, c)"; the middle part only if there is a near
/// name.
std::string unknown_name_message(std::string_view what, std::string_view name,
                                 std::span<const std::string> candidates);

}  // namespace palimpsest
