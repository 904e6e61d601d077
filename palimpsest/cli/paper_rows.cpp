#include "palimpsest/cli/paper_rows.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/cli/paper_recipes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace palimpsest::cli {
namespace {

/// Returns what follows "# KEY: " at the beginning of a line; "" if no line begins so.
std::string comment_of(const std::string& recipe, const std::string& key) {
  const std::string start = "\n# " + key + ": ";
  const std::size_t at = recipe.find(start);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + start.size();
  return recipe.substr(begin, recipe.find('\n', begin) - begin);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

PaperRow row_of(const Recipe& file) {
  const std::string recipe(file.text);
  const std::string title = recipe.substr(2, recipe.find('\n') - 2), gpus = comment_of(recipe, "gpus");
  return {std::string(file.name),
          title,
          comment_of(recipe, "paper"),
          comment_of(recipe, "baseline"),
          comment_of(recipe, "differs"),
          words_of(comment_of(recipe, "small")),
          gpus.empty() ? 1 : std::stoll(gpus),
          recipe};
}

}  // namespace

const std::vector<PaperRow>& paper_rows() {
  static const std::vector<PaperRow> rows = [] {
    std::vector<PaperRow> all;
    for (const Recipe& file : paper_recipes()) all.push_back(row_of(file));
    std::sort(all.begin(), all.end(), [](const PaperRow& a, const PaperRow& b) { return a.name < b.name; });
    return all;
  }();
  return rows;
}

const PaperRow& paper_row(std::string_view name) {
  std::vector<std::string> names, beginning;
  for (const PaperRow& row : paper_rows()) {
    if (row.name == name) return row;
    names.push_back(row.name);
    if (!name.empty() && row.name.starts_with(name)) beginning.push_back(row.name);
  }
  const std::string nearest = nearest_name(name, names);
  const std::string hint = !beginning.empty()
                               ? fmt::format("; these begin so: {}", fmt::join(beginning, ", "))
                           : nearest.empty() ? ""
                                             : "; did you mean '" + nearest + "'?";
  throw Error(ErrorKind::kUsage,
              "unknown row '" + std::string(name) + "'" + hint + " (palimpsest reproduce --list names all)");
}

std::string small_recipe(std::string_view name) {
  for (const Recipe& file : small_recipes())
    if (file.name == name) return std::string(file.text);
  throw Error(ErrorKind::kInternal, "examples/paper/small has no file '" + std::string(name) + ".toml'");
}

}  // namespace palimpsest::cli
