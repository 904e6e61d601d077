#include "palimpsest/base/printable.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

namespace palimpsest {
namespace {

struct Character {
  uint32_t code = 0;
  std::size_t bytes = 0;  // 0: the text does not begin with a UTF-8 character
};

/// Returns the first character of a text that is not empty.
Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  uint32_t code = lead & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (overlong || (code >= 0xD800 && code <= 0xDFFF) || code > 0x10FFFF) return {};
  return {code, bytes};
}

bool is_control(uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x2028 || code == 0x2029;
}

// A reversed "gnp.exe" reads as "exe.png".
bool sets_direction(uint32_t code) {
  return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x202A && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string escaped(uint32_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      char text[8];
      std::snprintf(text, sizeof text, code < 0x80 ? "\\x%02x" : "\\u%04x",
                    static_cast<unsigned>(code & 0xFFFF));
      return text;
  }
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = first_character(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const auto [code, bytes] = first_character(text);
    if (bytes == 0) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(text[0])));
      line += hex;
      text.remove_prefix(1);
      continue;
    }
    if (is_control(code) || sets_direction(code)) {
      line += escaped(code);
    } else {
      line += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return line;
}

std::string as_utf8(const std::string& text) {
  return is_utf8(text) ? text : printable(text);
}

std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return std::string(text.substr(0, end)) + "...";
}

std::string counted(std::int64_t count, std::string_view noun) {
  return std::to_string(count).append(" ").append(noun).append(count == 1 ? "" : "s");
}

std::string listed(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) text += (i ? ", " : "") + names[i];
  return text + (names.size() > kShown ? ", ..." : "");
}

}  // namespace palimpsest
