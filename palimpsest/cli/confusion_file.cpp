#include "palimpsest/cli/confusion_file.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/cli/output_file.h"
#include "palimpsest/io/atomic_file.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace palimpsest::cli {
namespace {

bool is_json(const Options& options) {
  return std::filesystem::path(options.run.confusion).extension() == ".json";
}

std::string quoted(const std::string& name) {
  std::string text = "\"";
  for (const char c : name) text += c == '"' ? "\"\"" : std::string(1, c);
  return text + '"';
}

std::string csv(const std::vector<std::string>& names, const std::vector<int64_t>& confusion) {
  std::string text = "\"truth\"";
  for (const std::string& name : names) text += "," + quoted(name);
  for (std::size_t i = 0; i < confusion.size(); ++i) {
    if (i % names.size() == 0) text += "\r\n" + quoted(names[i / names.size()]);
    text += "," + std::to_string(confusion[i]);
  }
  return text + "\r\n";
}

}  // namespace

void check_confusion_file(const Options& options) {
  if (options.run.confusion.empty()) return;
  if (!is_json(options) && std::filesystem::path(options.run.confusion).extension() != ".csv")
    throw Error(ErrorKind::kUsage, "--confusion must be a file .csv or .json, got " + options.run.confusion);
  check_output_file(options.run.confusion, "--confusion", options);
}

nlohmann::ordered_json confusion_rows(const std::vector<int64_t>& confusion) {
  const auto classes = static_cast<std::ptrdiff_t>(std::llround(std::sqrt(confusion.size())));
  auto rows = nlohmann::ordered_json::array();
  for (auto row = confusion.begin(); row != confusion.end(); row += classes)
    rows.push_back(std::vector<int64_t>(row, row + classes));
  return rows;
}

void write_confusion(const Options& options, const std::vector<int64_t>& confusion) {
  const auto& names = options.model.class_names;
  check_not_in_use(options.run.confusion);
  if (!is_json(options)) return io::write_file_atomically(options.run.confusion, csv(names, confusion));
  auto classes = nlohmann::ordered_json::array();
  for (const std::string& name : names) classes.push_back(as_utf8(name));
  const nlohmann::ordered_json json{{"classes", classes}, {"confusion", confusion_rows(confusion)}};
  io::write_file_atomically(options.run.confusion, json.dump() + "\n");
}

}  // namespace palimpsest::cli
