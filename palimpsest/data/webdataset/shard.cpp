#include "palimpsest/data/webdataset/shard.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"
#include "palimpsest/io/atomic_file.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace palimpsest::data::shards {
namespace {

namespace fs = std::filesystem;

/// The members of a shard, and what ended the reading before its end.
struct Members {
  std::vector<io::TarMember> list;
  std::string fault;
};

Members read_headers(io::TarReader& archive) {
  Members members;
  try {
    while (auto member = archive.next()) members.list.push_back(std::move(*member));
  } catch (const Error& error) {
    members.fault = error.what();
  }
  return members;
}

/// Returns the first line of the index of a shard, which another shard of the same name does not have.
std::string index_title(const fs::path& shard) {
  std::error_code error;
  const auto size = fs::file_size(shard, error);
  const auto time = fs::last_write_time(shard, error).time_since_epoch();
  return "palimpsest index 2 of a tar archive of " + std::to_string(size) + " bytes, time " +
         std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

constexpr const char *kFile = "file", *kLink = "link";

fs::path index_path(const fs::path& shard) {
  return shard.string() + ".index";
}

/// The index has the title, a line "file OFFSET SIZE NAME" or "link OFFSET 0 NAME" per member, and a line "end".
std::optional<Members> read_index(const fs::path& shard) {
  std::error_code error;
  if (!fs::is_regular_file(index_path(shard), error)) return std::nullopt;
  Members members;
  try {
    std::istringstream lines(io::read_file(index_path(shard)));
    std::string line;
    if (!std::getline(lines, line) || line != index_title(shard)) return std::nullopt;
    while (std::getline(lines, line) && line != "end") {
      std::istringstream words(line);
      io::TarMember member;
      std::string type;
      if (!(words >> type >> member.offset >> member.size) || words.get() != ' ' ||
          !std::getline(words, member.name) || (type != kFile && type != kLink))
        return std::nullopt;
      member.is_link = type == kLink;
      members.list.push_back(std::move(member));
    }
    if (line != "end") return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // then the headers are read
  }
  return members;
}

/// `title`: of the shard before its headers were read. A shard that was replaced since then has another one,
/// and gets no index.
void write_index(const fs::path& shard, const std::string& title, const Members& members) {
  std::string text = title + "\n";
  for (const io::TarMember& member : members.list) {
    if (member.name.find('\n') != std::string::npos) return;
    text += std::string(member.is_link ? kLink : kFile) + " " + std::to_string(member.offset) + " " +
            std::to_string(member.size) + " " + member.name + "\n";
  }
  if (index_title(shard) != title) return;
  try {
    io::write_file_atomically(index_path(shard), text + "end\n");
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): a folder that may not be written has no index
  }
}

/// Returns the length of the key in a member's name: up to the first dot behind the last slash.
std::size_t key_length(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  const std::size_t dot = name.find('.', slash == std::string_view::npos ? 0 : slash);
  return std::min(dot, name.size());
}

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower;
}

enum class Part { kImage, kId, kMap, kNone };

/// Returns what a member of this name is of its example.
Part part_of(std::string_view name) {
  const std::string ending = lower_case(name.substr(key_length(name)));
  if (ending == ".jpg" || ending == ".jpeg" || ending == ".png") return Part::kImage;
  if (ending == ".cls") return Part::kId;
  return ending == ".seg.png" ? Part::kMap : Part::kNone;
}

/// The members of one example.
struct Group {
  const io::TarMember *image = nullptr, *id = nullptr, *map = nullptr;  // .cls, .seg.png
  const io::TarMember *second_image = nullptr, *second_id = nullptr, *second_map = nullptr;

  void add(const io::TarMember& member) {
    switch (part_of(member.name)) {
      case Part::kImage:
        add(member, image, second_image);
        break;
      case Part::kId:
        add(member, id, second_id);
        break;
      case Part::kMap:
        add(member, map, second_map);
        break;
      case Part::kNone:
        break;
    }
  }
  /// A link counts only where there is no file.
  static void add(const io::TarMember& member, const io::TarMember*& first, const io::TarMember*& second) {
    if (!first || first->is_link) {
      first = &member;
    } else if (!member.is_link) {
      second = &member;
    }
  }
  /// Returns a member that is a link and that the example needs; null if there is none.
  const io::TarMember* link(bool labels_pixels) const {
    for (const io::TarMember* member : {image, labels_pixels ? map : id})
      if (member && member->is_link) return member;
    return nullptr;
  }
};

/// `is_cut`: the shard ends behind the group because it is damaged, so the group may lack members.
void add_example(Shard& shard, const Group& group, std::string_view key, bool labels_pixels, bool is_cut) {
  const io::TarMember* label = labels_pixels ? group.map : group.id;
  const io::TarMember* other = labels_pixels ? group.id : group.map;
  if (is_cut && (!group.image || !label)) return;
  shard.images += group.image != nullptr;
  const std::string example = "'" + printable(key) + "' of '" + shard.path.string() + "'";
  if (const io::TarMember* link = group.link(labels_pixels)) {
    shard.faults.push_back("example " + example + " has the link '" + printable(link->name) +
                           "', whose bytes are not in the archive: make it with tar -h --hard-dereference");
    return;
  }
  if (!group.image) {
    if (label)
      shard.faults.push_back("example " + example + " has a label and no image (.jpg, .jpeg or .png)");
    return;
  }
  if (!label) {
    const std::string wanted = labels_pixels ? ".seg.png, one class id per pixel" : ".cls, its class id";
    const std::string hint = !other          ? ""
                             : labels_pixels ? "; it has a .cls, for a classification model"
                                             : "; it has a .seg.png, for a segmentation model";
    shard.faults.push_back("example " + example + " has no label (" + wanted + ")" + hint);
    return;
  }
  const io::TarMember* second_label = labels_pixels ? group.second_map : group.second_id;
  if (const io::TarMember* second = group.second_image ? group.second_image : second_label) {
    shard.faults.push_back("example " + example + " has two " + (group.second_image ? "images" : "labels") +
                           ", the second one is '" + printable(second->name) + "'");
    return;
  }
  constexpr std::size_t kMostNames = std::size_t{1} << 31;
  if (shard.names.size() + group.image->name.size() > kMostNames)
    throw Error(ErrorKind::kData, "shard '" + shard.path.string() + "' has names of more than 2 GiB");
  const auto begin = static_cast<uint32_t>(shard.names.size());
  shard.names += group.image->name;
  shard.examples.push_back({{group.image->offset, group.image->size},
                            {label->offset, label->size},
                            begin,
                            static_cast<uint32_t>(shard.names.size())});
}

Shard examples_of(const fs::path& path, const Members& members, bool labels_pixels) {
  Shard shard;
  shard.path = path;
  for (std::size_t i = 0; i < members.list.size();) {
    const std::string_view name = members.list[i].name;
    const std::string_view key = name.substr(0, key_length(name));
    Group group;
    for (; i < members.list.size(); ++i) {
      const io::TarMember& member = members.list[i];
      if (member.is_link && part_of(member.name) == Part::kNone)
        continue;  // of no example, wherever it stands
      if (std::string_view(member.name).substr(0, key_length(member.name)) != key) break;
      group.add(member);
    }
    const bool is_cut = !members.fault.empty() && i == members.list.size();
    add_example(shard, group, key, labels_pixels, is_cut);
  }
  if (!members.fault.empty()) {
    const std::size_t found = shard.examples.size();
    shard.faults.insert(
        shard.faults.begin(),
        members.fault + (found == 0   ? "; no example before it is whole"
                         : found == 1 ? "; its first example is whole"
                                      : "; its first " + std::to_string(found) + " examples are whole"));
  }
  return shard;
}

}  // namespace

std::string Shard::name_of(const Example& example) const {
  return path.string() + ": " + names.substr(example.name_begin, example.name_end - example.name_begin);
}

std::string expected_files(bool labels_pixels) {
  return std::string(
             "tar archives ROOT/SPLIT/NAME.tar, or ROOT/NAME-{000..146}.tar, with KEY.jpg (or .png) and ") +
         (labels_pixels ? "KEY.seg.png" : "KEY.cls") + " for each example";
}

std::vector<fs::path> archives_in(const fs::path& folder, std::error_code& error) {
  std::vector<fs::path> found;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    if (entry->path().extension() == ".tar" && !entry->path().filename().string().starts_with('.'))
      found.push_back(entry->path());
  std::sort(found.begin(), found.end());
  return found;
}

int64_t class_of(std::string_view text, int64_t classes, const std::string& example) {
  const std::string_view given = text;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' '))
    text.remove_suffix(1);
  int64_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error == std::errc{} && end == text.data() + text.size() && id >= 0 && id < classes) return id;
  throw Error(ErrorKind::kData, "the class of '" + example + "' must be a number from 0 to " +
                                    std::to_string(classes - 1) + ", got '" +
                                    shortened(printable(given), 40) +
                                    "': correct the .cls, or the number of classes");
}

Shard read_examples(const fs::path& path, bool labels_pixels) {
  io::TarReader archive(path);
  return examples_of(path, read_headers(archive), labels_pixels);
}

Shard find_examples(const fs::path& path, bool labels_pixels) {
  const std::string title = index_title(path);
  io::TarReader archive(path);
  std::optional<Members> members = read_index(path);
  if (!members) {
    members = read_headers(archive);
    if (members->fault.empty()) write_index(path, title, *members);
  }
  return examples_of(path, *members, labels_pixels);
}

}  // namespace palimpsest::data::shards
