#include "palimpsest/train/common/bad_images.h"

#include "palimpsest/base/printable.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace palimpsest::train {

std::vector<std::string> reasons_of_all(const std::vector<data::BadExample>& bad, distributed::Group* group) {
  std::vector<std::string> reasons;
  reasons.reserve(bad.size());
  for (const data::BadExample& example : bad) reasons.push_back(printable(example.reason));  // one line each
  if (!group) return reasons;
  const std::string text = reasons.empty() ? "" : fmt::format("{}\n", fmt::join(reasons, "\n"));
  reasons.clear();
  for (const std::string& of_rank : group->all_gather_bytes(text, "the images that cannot be read"))
    for (std::size_t begin = 0, end; (end = of_rank.find('\n', begin)) != std::string::npos; begin = end + 1)
      reasons.push_back(of_rank.substr(begin, end - begin));
  return reasons;
}

bool BadImages::add(const std::string& reason) {
  if (!reasons_.insert(reason).second) return false;
  if (first_.size() < kNamedBadImages) first_.push_back(reason);
  return true;
}

std::string BadImages::summary() const {
  return fmt::format("{} could not be read: {}{}", counted(count(), "image"), fmt::join(first_, "; "),
                     reasons_.size() > first_.size() ? "; ..." : "");
}

}  // namespace palimpsest::train
