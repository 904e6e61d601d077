#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// Returns whether `text` is UTF-8 without overlong forms, surrogates and numbers above U+10FFFF.
bool is_utf8(std::string_view text);

/// Returns `text` in a form that a terminal shows as one line: a name out of a file must not move the cursor,
/// change colours or reverse the text after it. Escapes, as \n, \x1b or \u202e: control characters (C0, DEL,
/// C1), the separators of lines and paragraphs, controls of the writing direction, and bytes that are not
/// UTF-8. Leaves everything else, so a plain text is returned unchanged.
std::string printable(std::string_view text);

/// Returns `text` if it is UTF-8, else printable(text): the form that JSON and safetensors can hold.
std::string as_utf8(const std::string& text);

/// Returns the first `most` bytes of `text`, cut between two characters, with "..." if it is longer.
std::string shortened(std::string_view text, std::size_t most);

/// Returns "1 image", "2 images" for the noun "image". The noun's plural must end in s alone.
std::string counted(std::int64_t count, std::string_view noun);

/// Returns the first three of `names`, as "a, b, c, ..." if there are more.
std::string listed(const std::vector<std::string>& names);

}  // namespace palimpsest
