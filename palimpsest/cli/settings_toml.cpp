// Options from TOML and to TOML.
#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/settings.h"
#include "palimpsest/cli/toml.h"
#include "palimpsest/io/atomic_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <sstream>

namespace palimpsest::cli {
namespace {

std::string at_line(const std::string& name, const toml::source_region& region) {
  return name + ":" + std::to_string(region.begin.line);
}

std::vector<std::string> table_names() {
  std::vector<std::string> names;
  for (const Setting& s : settings())
    if (!s.table.empty() && (names.empty() || names.back() != s.table)) names.push_back(s.table);
  return names;
}

/// Returns whether the setting says which files are read and written. The user decides that, and not a file
/// that may come from a stranger; but `eval` reads the images that the training read. The policy for bad images is of
/// the images of the training, too.
bool chooses_files(const Setting& setting, Command command) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> ids) {
    return std::find(ids.begin(), ids.end(), setting.id()) != ids.end();
  };
  if (setting.table == "output" || is_one_of({"model.weights", "model.reset_classifier"})) return true;
  if (command == Command::kEval || command == Command::kInfo)
    return false;  // info names them, and reads none
  return is_one_of({"data.root", "data.train_split", "data.val_split", "data.bad_images"});
}

/// Formats the given value and its type for a message.
std::string given(const toml::node& node) {
  std::ostringstream text;
  node.visit([&](const auto& n) { text << n; });
  std::string line = shortened(text.str(), 200);
  std::replace(line.begin(), line.end(), '\n', ' ');
  std::ostringstream type;
  type << node.type();
  return line + " (" + type.str() + ")";
}

/// Returns the value of the node in the type of the setting, or nothing if the types differ.
std::optional<Value> value_of(const Setting& setting, const toml::node& node) {
  // Only a whole number converts, to a fraction.
  const auto number = [](const toml::node& n) -> std::optional<double> {
    if (const auto whole = n.value_exact<int64_t>()) return static_cast<double>(*whole);
    return n.value_exact<double>();
  };
  const auto wrap = [](const auto& v) { return v ? std::optional<Value>(*v) : std::nullopt; };
  return std::visit(
      [&](auto field) -> std::optional<Value> {
        using T = std::remove_reference_t<decltype(field(std::declval<Options&>()))>;
        if constexpr (std::is_same_v<T, double>) {
          return wrap(number(node));
        } else if constexpr (std::is_same_v<T, std::array<double, 3>>) {
          const toml::array* array = node.as_array();
          std::array<double, 3> three{};
          if (!array || array->size() != three.size()) return std::nullopt;
          for (std::size_t i = 0; i < three.size(); ++i) {
            const auto part = number((*array)[i]);
            if (!part) return std::nullopt;
            three[i] = *part;
          }
          return three;
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          const toml::array* array = node.as_array();
          std::vector<double> list;
          if (!array) return std::nullopt;
          for (const toml::node& element : *array) {
            const auto part = number(element);
            if (!part) return std::nullopt;
            list.push_back(*part);
          }
          return list;
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          const toml::array* array = node.as_array();
          std::vector<std::string> list;
          if (!array) return std::nullopt;
          for (const toml::node& element : *array) {
            const auto part = element.value_exact<std::string>();
            if (!part) return std::nullopt;
            list.push_back(*part);
          }
          return list;
        } else {
          return wrap(node.value_exact<T>());
        }
      },
      setting.field);
}

/// Returns the end of the string that begins at `begin`, or the end of the text.
std::size_t end_of_string(std::string_view text, std::size_t begin) {
  const char quote = text[begin];
  const bool many_lines = text.substr(begin).starts_with(std::string(3, quote));
  for (std::size_t i = begin + (many_lines ? 3 : 1); i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (!many_lines && (text[i] == quote || text[i] == '\n')) {
      return i + (text[i] == quote);  // a line feed ends it by an error
    } else if (many_lines && text.substr(i).starts_with(std::string(3, quote))) {
      i += 3;
      for (int more = 0; more < 2 && i < text.size() && text[i] == quote; ++more) ++i;  // """a""""" is a""
      return i;
    }
  }
  return text.size();
}

void read_table(Options& options, const std::string& table_name, const toml::table& table,
                const std::string& name) {
  std::vector<std::string> keys;
  for (const Setting& s : settings())
    if (s.table == table_name) keys.push_back(s.key);
  for (const auto& [toml_key, node] : table) {
    const std::string key(toml_key.str());
    const auto known = std::find_if(settings().begin(), settings().end(),
                                    [&](const Setting& s) { return s.table == table_name && s.key == key; });
    if (known == settings().end()) {
      std::string message = unknown_name_message("key of [" + table_name + "]", key, keys), others;
      for (const Setting& s : settings())
        if (!s.table.empty() && s.key == key)
          others.append(others.empty() ? "[" : ", [").append(s.table).append("]");
      if (!others.empty()) message.append("; a key of this name is in ").append(others);
      throw Error(ErrorKind::kUsage, at_line(name, toml_key.source()).append(": ").append(message));
    }
    const std::string where = fmt::format("{}: [{}] {}", at_line(name, node.source()), table_name, key);
    const auto value = value_of(*known, node);
    if (!value)
      throw Error(ErrorKind::kUsage, where + " must be " + required(*known) + ", got " + given(node));
    set(options, *known, *value, where);
  }
}

// A configuration has a few kilobytes. The names of 100,000 classes have 4 MB at most.
constexpr uint64_t kMostBytes = uint64_t{1} << 22;

void check_size(uint64_t bytes, const std::string& name) {
  if (bytes > kMostBytes)
    throw Error(ErrorKind::kUsage,
                fmt::format("{} has {} bytes: a configuration may have {}", name, bytes, kMostBytes));
}

/// Throws if values or keys are nested deeper than any setting. The parser recurses for each level, and its
/// tables are destroyed by recursion, so a line of dots (a.a.a.a = 1) would overflow the stack. Strings and
/// comments are skipped by the rules of TOML. A text that is no TOML may be skipped wrongly, but only behind
/// the error where the parser stops.
void check_depth(std::string_view text, const std::string& name) {
  constexpr int kMostLevels = 16;
  int line = 1, brackets = 0, dots = 0;
  const auto check = [&](int levels) {
    if (levels > kMostLevels)
      throw Error(ErrorKind::kUsage,
                  fmt::format("{}:{}: nested too deeply: a setting is [table] key = value, or an "
                              "array of values",
                              name, line));
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    switch (const char c = text[i]) {
      case '\n':
        ++line;
        dots = 0;
        break;
      case '#':
        i = std::min(text.find('\n', i), text.size()) - 1;
        break;
      case '"':
      case '\'': {
        const std::size_t end = end_of_string(text, i);
        line += static_cast<int>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                            text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
        i = end - 1;
        break;
      }
      case '[':
      case '{':
        check(++brackets);
        dots = 0;
        break;
      case ']':
      case '}':
        brackets = std::max(brackets - 1, 0);
        dots = 0;
        break;
      case '.':
        check(++dots);
        break;
      default:
        if (c == '=' || c == ',') dots = 0;
    }
  }
}

}  // namespace

namespace {

/// Throws Error(kUsage) for wrong syntax, deep nesting and a long text.
toml::table parse(const std::string& text, const std::string& name) {
  check_size(text.size(), name);
  check_depth(text, name);
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& failure) {
    throw Error(ErrorKind::kUsage,
                at_line(name, failure.source()) + ": " + std::string(failure.description()));
  }
}

/// Formats a value, numbers with as few digits as they need.
std::string value_text(const toml::node& node) {
  if (const toml::array* array = node.as_array()) {
    std::string text;
    for (const toml::node& part : *array) text += (text.empty() ? "" : ", ") + value_text(part);
    return "[" + text + "]";
  }
  if (const auto number = node.value_exact<double>()) return to_toml(*number);
  if (const auto word = node.value_exact<std::string>()) return to_toml(*word);
  std::ostringstream text;
  node.visit([&](const auto& n) { text << n; });
  return text.str();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> toml_entries(const std::string& text,
                                                              const std::string& name) {
  std::vector<std::pair<std::string, std::string>> entries;
  const auto add = [&](const std::string& key, const toml::node& node) {
    entries.emplace_back(key, value_text(node));
  };
  for (const auto& [key, node] : parse(text, name)) {
    if (!node.is_table())
      add(std::string(key.str()), node);
    else
      for (const auto& [inner, value] : *node.as_table())
        add(std::string(key.str()) + "." + std::string(inner.str()), value);
  }
  return entries;
}

void read_toml(Options& options, const std::string& text, const std::string& name) {
  const toml::table root = parse(text, name);
  const auto tables = table_names();
  for (const auto& [key, node] : root) {
    const std::string table_name(key.str());
    const std::string where = at_line(name, key.source()) + ": ";
    if (std::find(tables.begin(), tables.end(), table_name) == tables.end())
      throw Error(ErrorKind::kUsage,
                  where + unknown_name_message(node.is_table() ? "table" : "key outside of a table",
                                               table_name, tables));
    if (!node.is_table())
      throw Error(ErrorKind::kUsage, where + table_name + " must be a table, got " + given(node));
    read_table(options, table_name, *node.as_table(), name);
  }
}

void read_toml_file(Options& options, const std::filesystem::path& path) {
  std::string text;
  if (path.extension() == ".safetensors")
    throw Error(ErrorKind::kUsage, "--config takes a TOML file, got the weights '" + path.string() +
                                       "': continue a run with --resume --output FOLDER, or start from its "
                                       "weights with --weights");
  try {
    std::error_code ignored;  // a file that is missing has another error
    check_size(
        std::filesystem::is_regular_file(path, ignored) ? std::filesystem::file_size(path, ignored) : 0,
        path.string());
    text = io::read_file(path);
  } catch (const Error& failure) {
    // A wrong configuration is a wrong command and has its exit code.
    throw Error(ErrorKind::kUsage, failure.what());
  }
  read_toml(options, text, path.string());
}

namespace {

/// Reads the settings of which `is_wanted`, but never the output folder.
template <class Predicate>
void read_toml_if(const Predicate& is_wanted, Options& options, const std::string& text,
                  const std::string& name) {
  Options read;
  read_toml(read, text, name);
  for (const Setting& s : settings()) {
    const auto where = read.given.find(s.id());
    if (where == read.given.end() || s.id() == "output.folder" || !is_wanted(s)) continue;
    set(options, s, get(read, s), where->second);
  }
}

/// Reads the text of a checkpoint: an error in it is the file's, and older programs wrote other settings.
template <class Predicate>
void read_toml_in_checkpoint(const Predicate& is_wanted, Options& options, const std::string& text,
                             const std::string& name) {
  try {
    read_toml_if(is_wanted, options, text, name);
  } catch (const Error& error) {
    throw Error(ErrorKind::kCheckpoint, error.what());
  }
  if (options.data.has_photos() && !options.given.contains("data.exif_orientation"))
    options.data.exif_orientation = false;
}

}  // namespace

void read_toml_of(Scope narrowest, Scope widest, Options& options, const std::string& text,
                  const std::string& name) {
  read_toml_if([&](const Setting& s) { return s.scope() >= narrowest && s.scope() <= widest; }, options, text,
               name);
}

void read_stored_toml(Options& options, const std::string& text, const std::string& name) {
  const Command command = options.run.command;
  read_toml_in_checkpoint(
      [&](const Setting& s) { return s.scope() == Scope::kRun && !chooses_files(s, command); }, options, text,
      name);
}

void read_resumed_toml(Options& options, const std::string& text, const std::string& name) {
  read_toml_in_checkpoint([](const Setting& s) { return s.scope() == Scope::kRun; }, options, text, name);
}

std::string to_toml(const Options& options, Scope widest) {
  std::string out, table;
  for (const Setting& s : settings()) {
    if (s.table.empty() || s.id() == "output.folder" || s.scope() > widest) continue;
    if (!s.taken_by(options.run.command) || !void_reason(options, s).empty()) continue;
    if (s.hides_default() && get(options, s) == get(Options{}, s)) continue;
    if (s.table != table) {
      out += (out.empty() ? "[" : "\n[") + s.table + "]\n";
      table = s.table;
    }
    out += s.key + " = " + to_toml(get(options, s)) + "\n";
  }
  return out;
}

}  // namespace palimpsest::cli
