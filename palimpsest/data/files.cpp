#include "palimpsest/data/files.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/io/atomic_file.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

bool is_image(const fs::path& path) {
  std::string extension = path.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return extension == ".jpg" || extension == ".jpeg" || extension == ".png";
}

template <class Wanted>
std::vector<fs::path> list(const fs::path& folder, const char* what, const std::string& layout,
                           std::vector<fs::path>* skipped, const Wanted& wanted) {
  const auto fail = [&](const std::string& reason) {
    throw Error(ErrorKind::kData, "data folder '" + folder.string() + "' " + reason + "; expected " + layout);
  };
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (status.type() == fs::file_type::not_found) fail("does not exist");
  if (!fs::status_known(status)) fail("cannot be read (" + error.message() + ")");
  if (!fs::is_directory(status)) fail("is not a folder");
  std::vector<fs::path> found, others;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code vanished;  // a dangling link, for instance, is neither a file nor a folder
    const bool hidden = entry->path().filename().string().starts_with('.');
    (!hidden && wanted(*entry, vanished) ? found : others).push_back(entry->path());
  }
  if (error) fail("cannot be listed (" + error.message() + ")");
  if (found.empty()) fail(std::string("holds no ") + what);
  std::sort(found.begin(), found.end());
  std::sort(others.begin(), others.end());
  if (skipped) skipped->insert(skipped->end(), others.begin(), others.end());
  return found;
}

}  // namespace

void check_class_name(const std::string& name, const std::string& source) {
  if (!is_utf8(name))
    throw Error(ErrorKind::kData, "the class name '" + printable(name) + "' of '" + source +
                                      "' must be UTF-8, which checkpoints store: rename it");
}

void check_class_names(const std::vector<std::string>& names, const std::string& source) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    check_class_name(name, source);
    if (!seen.insert(name).second)
      throw Error(
          ErrorKind::kData,
          "'" + source + "' names the class '" + printable(shortened(name, 100)) +
              "' twice: the names of classes must differ, because checkpoints and results go by them");
  }
}

std::vector<std::string> read_class_names(const fs::path& root) {
  std::vector<std::string> names;
  const fs::path file = root / "classes.txt";
  if (!is_there(file)) return names;
  std::istringstream lines(without_byte_order_mark(io::read_file(file)));
  int64_t number = 0, empty = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos) {
      if (empty == 0) empty = number;
      continue;
    }
    if (empty > 0)
      throw Error(ErrorKind::kData, "'" + file.string() + "' has no name in line " + std::to_string(empty) +
                                        ", and names behind it: the line of a class is its id");
    names.push_back(line.substr(first, line.find_last_not_of(" \t\r") + 1 - first));
  }
  check_class_names(names, file.string());
  return names;
}

std::string without_byte_order_mark(std::string text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
  return text;
}

bool is_there(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found) return false;
  if (fs::status_known(status)) return true;
  throw Error(ErrorKind::kData, "cannot read '" + path.string() + "': " + error.message());
}

std::vector<fs::path> list_images(const fs::path& folder, const std::string& layout,
                                  std::vector<fs::path>* skipped) {
  return list(folder, ".jpg, .jpeg or .png file", layout, skipped,
              [](const fs::directory_entry& entry, std::error_code& error) {
                return is_image(entry.path()) && entry.is_regular_file(error);
              });
}

std::vector<fs::path> list_folders(const fs::path& folder, const std::string& layout,
                                   std::vector<fs::path>* skipped) {
  return list(
      folder, "folder", layout, skipped,
      [](const fs::directory_entry& entry, std::error_code& error) { return entry.is_directory(error); });
}

std::string skipped_text(const std::vector<fs::path>& skipped) {
  constexpr std::size_t kShown = 3;
  if (skipped.empty()) return "";
  std::string text = "skipped " + std::to_string(skipped.size()) +
                     (skipped.size() == 1 ? " file or folder, which is" : " files or folders, which are") +
                     " hidden or no .jpg, .jpeg or .png file: ";
  for (std::size_t i = 0; i < std::min(kShown, skipped.size()); ++i)
    text += (i ? ", " : "") + printable(skipped[i].string());
  return text + (skipped.size() > kShown ? ", ..." : "");
}

}  // namespace palimpsest::data
