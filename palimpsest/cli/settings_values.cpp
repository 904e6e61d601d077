// Values of settings: from text and TOML, to TOML, with checked ranges.
#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace palimpsest::cli {
namespace {

template <class... Cases>
struct Overload : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overload(Cases...) -> Overload<Cases...>;

std::string number_text(double value) {
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return std::string(buffer, end);
}

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> parts;
  if (text.empty()) return parts;
  for (auto comma = text.find(','); comma != text.npos; comma = text.find(',')) {
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(comma + 1);
  }
  parts.emplace_back(text);
  return parts;
}

bool within(const Range& range, double value) {
  return std::isfinite(value) && (range.above ? value > range.low : value >= range.low) &&
         (range.below ? value < range.high : value <= range.high);
}

std::string range_text(const Range& range) {
  const bool low = std::isfinite(range.low), high = std::isfinite(range.high);
  if (low && high)
    return (range.above ? " in (" : " in [") + number_text(range.low) + ", " + number_text(range.high) +
           (range.below ? ")" : "]");
  if (low) return (range.above ? " > " : " >= ") + number_text(range.low);
  return high ? (range.below ? " < " : " <= ") + number_text(range.high) : "";
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    constexpr char kHex[] = "0123456789ABCDEF";
    // A control character of two bytes, which a terminal obeys too, is U+0080 to U+009F.
    const bool is_c1 = byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (text[i] == '"' || text[i] == '\\') {
      out += {'\\', text[i]};
    } else if (byte < 0x20 || byte == 0x7f || is_c1) {
      const auto code = static_cast<unsigned char>(is_c1 ? text[++i] : text[i]);
      out += {'\\', 'u', '0', '0', kHex[code >> 4], kHex[code & 15]};
    } else {
      out += text[i];
    }
  }
  return out + "\"";
}

template <class Container, class Text>
std::string bracketed(const Container& values, const Text& text) {
  std::string out = "[";
  for (const auto& value : values) out += (out.size() > 1 ? ", " : "") + text(value);
  return out + "]";
}

/// Refuses a text that a checkpoint could not store, or that the system would cut. Paths on the command line alone may
/// have any other bytes.
void check_characters(const Setting& setting, const std::string& text, const std::string& where) {
  if (text.find('\0') != std::string::npos)
    throw Error(ErrorKind::kUsage,
                where + " must not hold the character NUL, got '" + printable(shortened(text, 200)) + "'");
  if (is_utf8(text) || setting.table.empty() || setting.id() == "output.folder") return;
  throw Error(ErrorKind::kUsage, where + " must be UTF-8, because checkpoints store it, got '" +
                                     printable(shortened(text, 200)) + "'");
}

[[noreturn]] void refuse(const Setting& setting, const std::string& given, const std::string& where) {
  throw Error(ErrorKind::kUsage, where + " must be " + required(setting) + ", got " + given);
}

void check_choice(const Setting& setting, const std::string& name, const std::string& where) {
  if (!setting.choices) return;
  const auto known = setting.choices();
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  if (setting.is_choice && setting.is_choice(name)) return;
  throw Error(ErrorKind::kUsage, where + ": " + unknown_name_message(setting.flag, name, known));
}

}  // namespace

std::string to_toml(const Value& value) {
  return std::visit(Overload{
                        [](bool b) -> std::string { return b ? "true" : "false"; },
                        [](int64_t i) { return std::to_string(i); },
                        [](double d) {
                          const std::string text = number_text(d);
                          // A point or an exponent tells TOML that a number is a fraction. nan and inf are
                          // words.
                          const bool plain =
                              std::isfinite(d) && text.find_first_of(".e") == std::string::npos;
                          return plain ? text + ".0" : text;
                        },
                        [](const std::string& s) { return toml_string(s); },
                        [](const std::vector<std::string>& list) {
                          return bracketed(list, [](const std::string& s) { return toml_string(s); });
                        },
                        [](const std::vector<double>& list) { return bracketed(list, number_text); },
                        [](const std::array<double, 3>& three) { return bracketed(three, number_text); },
                    },
                    value);
}

std::string required(const Setting& setting) {
  const std::string range = range_text(setting.range);
  return std::visit(
      Overload{
          [](bool& (*)(Options&)) -> std::string { return "true or false"; },
          [&](int64_t& (*)(Options&)) { return "a whole number" + range; },
          [&](double& (*)(Options&)) { return "a number" + range; },
          [](std::string& (*)(Options&)) -> std::string { return "a text"; },
          [](std::vector<std::string>& (*)(Options&)) -> std::string { return "a list of texts"; },
          [&](std::vector<double>& (*)(Options&)) { return "a list of numbers" + range; },
          [&](std::array<double, 3>& (*)(Options&)) { return "three numbers (r, g, b)" + range; },
      },
      setting.field);
}

Value get(const Options& options, const Setting& setting) {
  // The accessors return references; this one is only read.
  return std::visit([&](auto field) -> Value { return field(const_cast<Options&>(options)); }, setting.field);
}

void set(Options& options, const Setting& setting, const Value& value, const std::string& where) {
  std::visit(
      [&](auto field) {
        using T = std::remove_reference_t<decltype(field(options))>;
        const T& v = std::get<T>(value);
        bool fits = true;
        if constexpr (std::is_same_v<T, int64_t> || std::is_same_v<T, double>)
          fits = within(setting.range, static_cast<double>(v));
        if constexpr (std::is_same_v<T, std::vector<double>> || std::is_same_v<T, std::array<double, 3>>)
          fits = std::all_of(v.begin(), v.end(), [&](double x) { return within(setting.range, x); });
        if (!fits) refuse(setting, to_toml(value), where);
        if constexpr (std::is_same_v<T, std::string>) {
          check_characters(setting, v, where);
          check_choice(setting, v, where);
        }
        if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          for (const auto& name : v) {
            check_characters(setting, name, where);
            check_choice(setting, name, where);
          }
        }
        field(options) = v;
      },
      setting.field);
  options.given[setting.id()] = where;
}

void set_text(Options& options, const Setting& setting, std::string_view text, const std::string& where) {
  const auto bad = [&] { refuse(setting, std::string("'").append(text) + "'", where); };
  const auto number = [&]<class Number>(std::string_view part, Number) -> Number {
    Number value{};
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (end != part.data() + part.size()) bad();
    if (failure == std::errc::result_out_of_range)
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} must be {} that {} bits hold, got '{}'", where, required(setting),
                              8 * sizeof(Number), shortened(text, 200)));
    if (failure != std::errc()) bad();
    return value;
  };
  const Value value =
      std::visit(Overload{
                     [&](bool& (*)(Options&)) -> Value {
                       if (text != "true" && text != "false") bad();
                       return text == "true";
                     },
                     [&](int64_t& (*)(Options&)) -> Value { return number(text, int64_t{}); },
                     [&](double& (*)(Options&)) -> Value { return number(text, double{}); },
                     [&](std::string& (*)(Options&)) -> Value { return std::string(text); },
                     [&](std::vector<std::string>& (*)(Options&)) -> Value { return split_commas(text); },
                     [&](std::vector<double>& (*)(Options&)) -> Value {
                       std::vector<double> list;
                       for (const std::string& part : split_commas(text))
                         list.push_back(number(part, double{}));
                       return list;
                     },
                     [&](std::array<double, 3>& (*)(Options&)) -> Value {
                       const auto parts = split_commas(text);
                       if (parts.size() != 3) bad();
                       std::array<double, 3> three{};
                       for (std::size_t i = 0; i < 3; ++i) three[i] = number(parts[i], double{});
                       return three;
                     },
                 },
                 setting.field);
  set(options, setting, value, where);
}

}  // namespace palimpsest::cli
