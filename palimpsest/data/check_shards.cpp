#include "palimpsest/data/check/shards.h"

#include "palimpsest/base/error.h"
#include "palimpsest/data/check/findings.h"
#include "palimpsest/data/files.h"
#include "palimpsest/data/layouts/labeled_pixels.h"
#include "palimpsest/data/webdataset/braces.h"
#include "palimpsest/data/webdataset/open_shards.h"
#include "palimpsest/data/webdataset/shard.h"
#include "palimpsest/io/image.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace palimpsest::data::checks {
namespace {

namespace fs = std::filesystem;

struct ShardSplit {
  std::string name;  ///< as --train-split takes it
  std::vector<fs::path> shards;
  std::vector<std::string> faults;
};

/// Returns the part of "train-000017.tar" before its number, and the number: "train-", "000017". The number
/// is empty if there is none.
std::pair<std::string, std::string> split_name(const fs::path& shard) {
  constexpr std::size_t kMostDigits = 15;
  const std::string stem = shard.stem().string();
  std::size_t begin = stem.size();
  while (begin > 0 && stem.size() - begin < kMostDigits && stem[begin - 1] >= '0' && stem[begin - 1] <= '9')
    --begin;
  return {stem.substr(0, begin), stem.substr(begin)};
}

/// Returns the split of the shards PREFIX NUMBER .tar, of which there are at least two.
ShardSplit numbered_split(const fs::path& root, const std::string& prefix, std::vector<std::string> numbers) {
  std::sort(numbers.begin(), numbers.end(), [](const auto& a, const auto& b) {
    return std::pair(std::stoll(a), a) < std::pair(std::stoll(b), b);
  });
  ShardSplit split;
  std::set<std::string> there;
  std::string list;
  for (const std::string& number : numbers) {
    there.insert(prefix + number + ".tar");
    split.shards.push_back(root / (prefix + number + ".tar"));
    list += (list.empty() ? "" : ",") + number;
  }
  split.name = prefix + "{" + list + "}.tar";
  // Numbers such as dates leave out most of their range, and are a list.
  if (std::stoll(numbers.back()) - std::stoll(numbers.front()) >= 2 * static_cast<int64_t>(numbers.size()))
    return split;
  const std::string range = prefix + "{" + numbers.front() + ".." + numbers.back() + "}.tar";
  std::vector<std::string> missing;
  std::size_t found = 0;
  for (const std::string& name : shards::expand_braces(range)) {
    found += there.contains(name);
    if (!there.contains(name)) missing.push_back(name);
  }
  if (found != there.size()) return split;  // 1 and 01: other digits than those of a range
  split.name = range;
  for (const std::string& name : missing)
    split.faults.push_back("shard '" + (root / name).string() + "' does not exist, one of '" + range + "'");
  return split;
}

std::vector<ShardSplit> splits_of(const fs::path& root) {
  std::vector<ShardSplit> splits;
  std::error_code ignored;
  std::map<std::string, std::vector<std::string>> numbers;  // by what stands before them
  for (const fs::path& shard : shards::archives_in(root, ignored)) {
    auto [prefix, number] = split_name(shard);
    if (number.empty())
      splits.push_back({shard.filename().string(), {shard}, {}});
    else
      numbers[prefix].push_back(std::move(number));
  }
  for (auto& [prefix, of_prefix] : numbers) {
    if (of_prefix.size() > 1) {
      splits.push_back(numbered_split(root, prefix, std::move(of_prefix)));
      continue;
    }
    const std::string name = prefix + of_prefix.front() + ".tar";
    splits.push_back({name, {root / name}, {}});
  }
  for (fs::directory_iterator entry(root, ignored), end; !ignored && entry != end; entry.increment(ignored)) {
    std::error_code vanished;
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.') || !entry->is_directory(vanished)) continue;
    std::vector<fs::path> archives = shards::archives_in(entry->path(), vanished);
    if (!archives.empty()) splits.push_back({name, std::move(archives), {}});
  }
  std::sort(splits.begin(), splits.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return splits;
}

/// The examples of all shards of a split, for one kind of label.
struct Examples {
  std::vector<shards::Shard> of_shard;
  std::vector<std::pair<std::size_t, std::size_t>> list;  // shard, example
};

Examples read_all(const ShardSplit& split, bool labels_pixels) {
  Examples examples;
  for (const fs::path& path : split.shards) {
    shards::Shard shard;
    try {
      shard = shards::read_examples(path, labels_pixels);
    } catch (const Error& error) {
      shard.path = path;
      shard.faults.emplace_back(error.what());
    }
    for (std::size_t i = 0; i < shard.examples.size(); ++i)
      examples.list.emplace_back(examples.of_shard.size(), i);
    examples.of_shard.push_back(std::move(shard));
  }
  return examples;
}

/// The largest number of classes that a network may have (--classes), where the number is not known.
constexpr int64_t kMostClasses = 1'000'000;

void check_examples(SplitCheck& check, const Examples& examples, int64_t classes,
                    const CheckOptions& options) {
  for (const shards::Shard& shard : examples.of_shard) {
    check.images += shard.images;
    check.faults.insert(check.faults.end(), shard.faults.begin(), shard.faults.end());
  }
  check.labels = static_cast<int64_t>(examples.list.size());
  if (examples.list.empty())
    check.faults.push_back("the shards of '" + check.name + "' hold no example; expected " +
                           shards::expected_files(check.labels_pixels));
  if (check.labels_pixels && !options.full) return;
  const int64_t pixel_classes = classes > 0 ? std::min<int64_t>(classes, 256) : 256;
  const layouts::LabelIds ids = layouts::plain_ids(pixel_classes, options.ignore_id.value_or(255));
  shards::OpenShards open;
  const auto examine = [&](int64_t i, Findings& found) {
    const auto [shard_at, at] = examples.list[i];
    const shards::Shard& shard = examples.of_shard[shard_at];
    const shards::Example& example = shard.examples[at];
    const std::string name = shard.name_of(example), label_name = "label of " + name;
    at::Tensor image, label;
    if (options.full)
      image = found.try_read(i, [&] {
        return io::ImageFile(open.read(shard, example.image, name), name, options.orientation).decode();
      });
    if (check.labels_pixels) {
      label = found.try_read(
          i, [&] { return io::decode_label(open.read(shard, example.label, label_name), label_name); });
    } else {
      try {
        found.add_class(shards::class_of(open.read(shard, example.label, label_name),
                                         classes > 0 ? classes : kMostClasses, name));
      } catch (const Error& error) {
        found.faults.emplace_back(i, error.what());
      }
    }
    found.examine(i, image, name, label, label_name, &ids, options);
  };
  CheckOptions own = options;
  if (!options.full) own.progress = nullptr;  // it counts decoded images
  const Findings found = examine_all(check.labels, check.name, own, examine);
  add_findings(check, found);
  if (check.labels_pixels) {
    add_pixels(check, found, ids, pixel_classes);
  } else {
    check.class_counts = found.classes;
    check.class_counts.resize(std::max<std::size_t>(classes, found.classes.size()));
  }
}

}  // namespace

bool holds_shards(const fs::path& root) {
  return !splits_of(root).empty();
}

void check_shards(DataCheck& result, const fs::path& root, int64_t classes, const CheckOptions& options) {
  result.expected = shards::expected_files(false) + ", or KEY.seg.png for a segmentation network";
  const auto splits = splits_of(root);
  if (splits.empty())
    throw Error(ErrorKind::kData, "'" + root.string() + "' holds no .tar file; expected " + result.expected);
  for (const ShardSplit& split : splits) {
    const Examples of_images = read_all(split, false), of_pixels = read_all(split, true);
    const bool both = !of_images.list.empty() && !of_pixels.list.empty();
    for (const bool labels_pixels : {false, true}) {
      const Examples& examples = labels_pixels ? of_pixels : of_images;
      if (examples.list.empty() && (labels_pixels || !of_pixels.list.empty())) continue;
      SplitCheck check;
      check.name = split.name + (!both ? "" : labels_pixels ? ", .seg.png" : ", .cls");
      check.labels_pixels = labels_pixels;
      check.faults = split.faults;
      check_examples(check, examples, classes, options);
      result.splits.push_back(std::move(check));
    }
  }
}

}  // namespace palimpsest::data::checks
