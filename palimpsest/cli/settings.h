#pragma once

#include "palimpsest/cli/options.h"

#include <array>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace palimpsest::cli {

/// Allowed numbers; whole numbers and fractions alike.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above = false;  ///< low itself is not allowed
};

/// Where a setting lives in Options; its type says what text and TOML it accepts.
using Field = std::variant<bool& (*)(Options&), int64_t& (*)(Options&), double& (*)(Options&),
                           std::string& (*)(Options&), std::vector<std::string>& (*)(Options&),
                           std::array<double, 3>& (*)(Options&)>;

/// One setting: TOML key `[table] key` and flag `--flag`. Everything that reads, checks, prints or explains
/// settings goes through this table, so that files and command line cannot drift apart.
struct Setting {
  std::string table;  ///< "": of the command line only
  std::string key;
  std::string flag;  ///< without "--"
  std::string unit;  ///< of the value, as help shows it: "<pixels>"; empty for a switch
  std::string help;
  unsigned commands;  ///< Command bits
  Field field;
  Range range = {};
  std::vector<std::string> (*choices)() = nullptr;  ///< allowed texts
  bool (*is_choice)(const std::string&) = nullptr;  ///< where more than those are allowed

  std::string id() const { return table.empty() ? flag : table + "." + key; }
  bool is_switch() const { return std::holds_alternative<bool& (*)(Options&)>(field); }
  bool taken_by(Command command) const { return (commands & static_cast<unsigned>(command)) != 0; }
};

/// All settings, tables in the order of the effective configuration.
std::span<const Setting> settings();
const Setting& setting(std::string_view id);  ///< by "table.key"; throws std::logic_error when there is none

using Value =
    std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::array<double, 3>>;

Value get(const Options& options, const Setting& setting);
/// Checks range and choices, stores the value and notes `where` ("--lr", "camvid.toml:7: [optimizer] lr") in
/// options.given. `value` has the field's own type. Throws Error(kUsage) "WHERE must be REQUIRED, got VALUE".
void set(Options& options, const Setting& setting, const Value& value, const std::string& where);
/// The same from a flag's text: numbers in full, lists separated by commas.
void set_text(Options& options, const Setting& setting, std::string_view text, const std::string& where);

/// "a whole number >= 1", "true or false", …
std::string required(const Setting& setting);
/// As TOML writes it.
std::string to_toml(const Value& value);

/// Why the setting has no effect with the others, or "": "[schedule] power needs [schedule] kind = poly,
/// which is step".
std::string void_reason(const Options& options, const Setting& setting);

}  // namespace palimpsest::cli
