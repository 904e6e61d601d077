#include "palimpsest/base/nearest_name.h"

#include "palimpsest/base/printable.h"

#include <algorithm>
#include <vector>

namespace palimpsest {
namespace {

// A longer name is no misspelling. It may be a key of megabytes out of a file, for which the table below
// would take minutes.
constexpr std::size_t kLongestName = 100;

// Returns the optimal string alignment distance. Names are short, so the full table is cheap.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string> candidates) {
  std::string best;
  if (name.size() > kLongestName) return best;
  std::size_t best_distance = (name.size() + 2) / 3 + 1;
  for (const auto& candidate : candidates) {
    if (candidate.size() > kLongestName) continue;
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  if (!best.empty()) return best;
  // "--batch-size" goes on where "--batch" ends, and "--out" ends before "--output" does.
  constexpr std::size_t kTelling = 4;
  for (const auto& candidate : candidates) {
    const bool shorter = candidate.size() > kTelling && name.starts_with(candidate);
    if (shorter && candidate.size() > best.size()) best = candidate;
  }
  if (!best.empty() || name.size() < kTelling) return best;
  for (const auto& candidate : candidates)
    if (candidate.starts_with(name) && (best.empty() || candidate.size() < best.size())) best = candidate;
  return best;
}

std::string unknown_name_message(std::string_view what, std::string_view name,
                                 std::span<const std::string> candidates) {
  std::string message = "unknown " + std::string(what) + " '" + shortened(name, kLongestName) + "'";
  const std::string nearest = nearest_name(name, candidates);
  if (!nearest.empty()) message += "; did you mean '" + nearest + "'?";
  message += " (known: ";
  for (std::size_t i = 0; i < candidates.size(); ++i) message += (i ? ", " : "") + candidates[i];
  return message + ")";
}

}  // namespace palimpsest
