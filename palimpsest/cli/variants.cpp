#include "palimpsest/cli/variants.h"

#include "palimpsest/amp/precision.h"
#include "palimpsest/base/error.h"
#include "palimpsest/base/nearest_name.h"
#include "palimpsest/nn/activation.h"
#include "palimpsest/nn/dense_strategy.h"
#include "palimpsest/nn/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace palimpsest::cli {
namespace {

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the setting that a part after the strategy names. Some names are both a strategy and a dense
/// strategy; the place decides.
std::string& setting_of(Options& options, const std::string& part, const std::string& variant) {
  const auto precisions = amp::precision_names(), dense = nn::dense_strategy_names(),
             activations = nn::activation_names();
  if (contains(precisions, part)) return options.train.precision;
  if (contains(dense, part)) return options.model.dense_strategy;
  if (contains(activations, part)) return options.model.activation;
  std::vector<std::string> all = precisions;
  all.insert(all.end(), dense.begin(), dense.end());
  all.insert(all.end(), activations.begin(), activations.end());
  throw Error(ErrorKind::kUsage,
              "[compare] strategies (--strategies), '" + variant +
                  "': " + unknown_name_message("precision, dense strategy or activation", part, all));
}

std::vector<std::string> parts_of(const std::string& variant) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end; begin <= variant.size(); begin = end + 1) {
    end = std::min(variant.find('+', begin), variant.size());
    parts.push_back(variant.substr(begin, end - begin));
  }
  return parts;
}

bool is_same_variant(const Options& a, const Options& b) {
  return a.model.strategy == b.model.strategy && a.train.precision == b.train.precision &&
         a.model.dense_strategy == b.model.dense_strategy && a.model.activation == b.model.activation;
}

}  // namespace

Options with_variant(Options options, const std::string& variant) {
  const auto parts = parts_of(variant);
  options.model.strategy = nn::to_string(nn::parse_strategy(parts[0]));
  std::set<const std::string*> settings;
  for (std::size_t i = 1; i < parts.size(); ++i) {
    std::string& setting = setting_of(options, parts[i], variant);
    if (!settings.insert(&setting).second)
      throw Error(ErrorKind::kUsage,
                  fmt::format("[compare] strategies (--strategies), '{}': {} and {} exclude each other",
                              variant, setting, parts[i]));
    setting = parts[i];
  }
  return options;
}

std::string canonical_variant(const std::string& variant) {
  const std::string strategy = with_variant({}, variant).model.strategy;
  return strategy + variant.substr(std::min(variant.find('+'), variant.size()));
}

bool begins_with_strategy(const std::string& text) {
  try {
    nn::parse_strategy(parts_of(text)[0]);
    return true;
  } catch (const Error&) {
    return false;
  }
}

std::vector<Options> options_of_variants(const Options& options) {
  std::vector<Options> runs;
  std::vector<std::string> names;
  for (const std::string& given : options.compare.strategies) {
    const std::string name = canonical_variant(given);
    Options run = with_variant(options, given);
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (is_same_variant(runs[i], run))
        throw Error(ErrorKind::kUsage,
                    "[compare] strategies (--strategies) must differ, got " + names[i] + " twice" +
                        (given == names[i] ? "" : " ('" + given + "' is another name for it)"));
    names.push_back(name);
    run.run.command = Command::kTrain;
    run.output.folder = (std::filesystem::path(options.output.folder) / name).string();
    runs.push_back(std::move(run));
  }
  if (runs.size() < 2)
    throw Error(ErrorKind::kUsage, "[compare] strategies (--strategies) must name at least two, got " +
                                       (names.empty() ? std::string("none") : "only " + names[0]));
  return runs;
}

}  // namespace palimpsest::cli
