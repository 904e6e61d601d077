#pragma once

#include "palimpsest/data/loader.h"
#include "palimpsest/distributed/process_group.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace palimpsest::train {

/// Returns the reasons of all ranks, in rank order. A collective, unless `group` is null.
std::vector<std::string> reasons_of_all(const std::vector<data::BadExample>& bad, distributed::Group* group);

/// The images of a run that could not be read, each once.
class BadImages {
 public:
  /// Adds an image by its error. Returns whether it is new.
  bool add(const std::string& reason);
  int64_t count() const { return static_cast<int64_t>(reasons_.size()); }
  /// Returns "12 images could not be read: REASON; REASON; REASON; ...", with the first ones that were added.
  std::string summary() const;

 private:
  std::set<std::string> reasons_;   // also of a million bad images no more than 200 MB
  std::vector<std::string> first_;  // in the order in which they were added
};

/// The number of images that messages name.
inline constexpr std::size_t kNamedBadImages = 3;

}  // namespace palimpsest::train
