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

/// A range of allowed numbers, for whole numbers and fractions.
struct Range {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  bool above = false;  ///< `low` itself is not allowed
  bool below = false;  ///< `high` itself is not allowed
};

/// The accessor of a setting in Options. Its type determines which text and TOML the setting accepts.
using Field = std::variant<bool& (*)(Options&), int64_t& (*)(Options&), double& (*)(Options&),
                           std::string& (*)(Options&), std::vector<std::string>& (*)(Options&),
                           std::vector<double>& (*)(Options&), std::array<double, 3>& (*)(Options&)>;

/// One setting: TOML key `[table] key` and flag `--flag`. All code that reads, checks, prints or explains
/// settings uses one table of these, so files and command line cannot differ.
struct Setting {
  std::string table;  ///< "": a flag of the command line only
  std::string key;
  std::string flag;  ///< without "--"
  std::string unit;  ///< of the value in the help: "<pixels>"; empty for a switch
  std::string help;
  unsigned commands;  ///< Command bits
  Field field;
  Range range = {};
  std::vector<std::string> (*choices)() = nullptr;  ///< allowed texts
  bool (*is_choice)(const std::string&) = nullptr;  ///< accepts further texts, such as aliases

  Scope scope() const;
  /// Returns whether a configuration leaves the setting out while it has its default. So runs without these
  /// settings have the configuration, and the checkpoint, that they always had.
  bool hides_default() const;
  std::string id() const { return table.empty() ? flag : table + "." + key; }
  bool is_switch() const { return std::holds_alternative<bool& (*)(Options&)>(field); }
  /// Whether --no-FLAG switches it off. A switch that only the command line has is an action: it has no such form.
  bool has_opposite() const { return is_switch() && !table.empty(); }
  /// reproduce takes what train or compare takes, and flags of its own.
  bool taken_by(Command command) const;
};

/// Returns all settings, with the tables in the order of the effective configuration.
std::span<const Setting> settings();
/// Returns the setting with this id(), "table.key". Throws std::logic_error if there is none.
const Setting& setting(std::string_view id);

using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>, std::vector<double>,
                           std::array<double, 3>>;

Value get(const Options& options, const Setting& setting);
/// Checks range and choices, stores the value, which must have the type of the field, and notes `where`
/// ("--lr", "camvid.toml:7: [optimizer] lr") in options.given. Throws Error(kUsage) "WHERE must be REQUIRED,
/// got VALUE".
void set(Options& options, const Setting& setting, const Value& value, const std::string& where);
/// Sets a setting from the text of a flag. Lists are separated by commas. Throws as set() does.
void set_text(Options& options, const Setting& setting, std::string_view text, const std::string& where);

/// Describes the allowed values: "a whole number >= 1", "true or false", ...
std::string required(const Setting& setting);
/// Formats a value as TOML.
std::string to_toml(const Value& value);

/// Returns "[schedule] kind (--schedule)": both names, because the user may have used either.
std::string both_names(const Setting& setting);

/// Returns why a setting has no effect in combination with the others, or "". Example: "needs [schedule] kind
/// (--schedule) = poly, which is step". In a comparison a setting has an effect if it has one in a variant.
std::string void_reason(const Options& options, const Setting& setting);

}  // namespace palimpsest::cli
