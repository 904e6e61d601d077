#include "palimpsest/data/webdataset/braces.h"

#include "palimpsest/base/error.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace palimpsest::data::shards {
namespace {

constexpr std::size_t kMostNames = 1'000'000;

[[noreturn]] void refuse(const std::string& pattern, const std::string& reason) {
  throw Error(ErrorKind::kUsage, "the shards '" + pattern + "': " + reason +
                                     "; a range is {000..146}, a list is {first,second}");
}

std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// Returns what stands for the text between two braces.
std::vector<std::string> choices_of(std::string_view inside, const std::string& pattern) {
  std::vector<std::string> choices;
  const std::size_t dots = inside.find("..");
  if (dots == std::string_view::npos || inside.find(',') != std::string_view::npos) {
    for (std::size_t begin = 0; begin <= inside.size();) {
      const std::size_t end = std::min(inside.find(',', begin), inside.size());
      choices.emplace_back(inside.substr(begin, end - begin));
      begin = end + 1;
    }
    if (choices.size() < 2)
      refuse(pattern, "braces need a range or a list, got '{" + std::string(inside) + "}'");
    return choices;
  }
  const std::string_view first_text = inside.substr(0, dots), last_text = inside.substr(dots + 2);
  const auto first = number(first_text), last = number(last_text);
  if (!first || !last || *first > *last)
    refuse(pattern,
           "a range needs two whole numbers, the smaller one first, got '{" + std::string(inside) + "}'");
  if (static_cast<uint64_t>(*last - *first) >= kMostNames)
    refuse(pattern, "more than " + std::to_string(kMostNames) + " names");
  // As in a shell: one end with a zero in front gives all names the digits of the longer end.
  const auto padded = [](std::string_view text) { return text.size() > 1 && text.starts_with('0'); };
  const bool pad = padded(first_text) || padded(last_text);
  const std::size_t digits = pad ? std::max(first_text.size(), last_text.size()) : 1;
  for (int64_t i = *first; i <= *last; ++i) {
    std::string text = std::to_string(i);
    if (text.size() < digits) text.insert(0, digits - text.size(), '0');
    choices.push_back(std::move(text));
  }
  return choices;
}

}  // namespace

std::vector<std::string> expand_braces(const std::string& pattern) {
  std::vector<std::string> names{""};
  std::string_view rest = pattern;
  while (true) {
    const std::size_t open = rest.find_first_of("{}");
    if (open != std::string_view::npos && rest[open] == '}') refuse(pattern, "a '}' has no '{' before it");
    const std::string_view plain = rest.substr(0, open);
    for (std::string& name : names) name += plain;
    if (open == std::string_view::npos) return names;
    const std::size_t close = rest.find_first_of("{}", open + 1);
    if (close == std::string_view::npos) refuse(pattern, "a '{' has no '}' behind it");
    if (rest[close] == '{') refuse(pattern, "braces may not contain braces");
    const auto choices = choices_of(rest.substr(open + 1, close - open - 1), pattern);
    if (choices.size() > kMostNames / names.size())
      refuse(pattern, "more than " + std::to_string(kMostNames) + " names");
    std::vector<std::string> longer;
    longer.reserve(names.size() * choices.size());
    for (const std::string& name : names)
      for (const std::string& choice : choices) longer.push_back(name + choice);
    names = std::move(longer);
    rest.remove_prefix(close + 1);
  }
}

}  // namespace palimpsest::data::shards
