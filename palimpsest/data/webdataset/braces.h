#pragma once

#include <string>
#include <vector>

namespace palimpsest::data::shards {

/// Returns the names that a pattern stands for, in order, as a shell expands it: "a{08..10}" is a08, a09, a10,
/// and if one of the two begins with 0, all have the digits of the longer one; "{x,y}/{1..2}" is x/1, x/2, y/1,
/// y/2. Throws Error(kUsage) for a brace without its other one, braces in braces, a range that does not ascend,
/// and more than a million names.
std::vector<std::string> expand_braces(const std::string& pattern);

}  // namespace palimpsest::data::shards
