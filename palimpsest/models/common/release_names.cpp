#include "palimpsest/models/common/release_names.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::models {
namespace {

constexpr std::string_view kClassifier = "classifier.fc.";

std::vector<std::string_view> parts_of(std::string_view key) {
  std::vector<std::string_view> parts;
  for (std::size_t dot; (dot = key.find('.')) != std::string_view::npos; key.remove_prefix(dot + 1))
    parts.push_back(key.substr(0, dot));
  parts.push_back(key);
  return parts;
}

/// Returns the number that `text` is behind `prefix`; -1 if it is none.
int number_behind(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return -1;
  text.remove_prefix(prefix.size());
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value < 10000 ? value : -1;
}

/// Returns "conv" or "norm" for the release's "conv" and "bn", else "".
std::string kind_of(std::string_view part) {
  return part == "conv" ? "conv" : part == "bn" ? "norm" : "";
}

/// Returns our name for a key of the release's DenseNet.
std::string dense_name(const std::string& key) {
  const auto parts = parts_of(key);
  const std::string end = "." + std::string(parts.back());
  if (parts.size() == 2 && parts[0] == "bn_out") return "features.norm5" + end;
  if (parts.size() == 3 && parts[0] == "mod1")
    for (const std::string_view kind : {"conv", "bn"})
      if (const int place = number_behind(parts[1], kind); place > 0)
        return "features." + kind_of(kind) + std::to_string(place - 1) + end;
  if (const int place = parts.size() == 3 ? number_behind(parts[0], "tra") : -1;
      place > 1 && !kind_of(parts[1]).empty())
    return "features.transition" + std::to_string(place - 1) + "." + kind_of(parts[1]) + end;
  if (parts.size() != 5 || (parts[1] != "convs1" && parts[1] != "convs3") || kind_of(parts[3]).empty())
    return key;
  const int block = number_behind(parts[0], "mod"), layer = number_behind(parts[2], "");
  if (block < 2 || layer < 0) return key;
  return "features.denseblock" + std::to_string(block - 1) + ".denselayer" + std::to_string(layer + 1) + "." +
         kind_of(parts[3]) + (parts[1] == "convs1" ? "1" : "2") + end;
}

}  // namespace

void rename_release_keys(nn::StateDict& tensors) {
  const bool dense = std::any_of(tensors.begin(), tensors.end(),
                                 [](const auto& entry) { return entry.first.starts_with("mod2.convs1."); });
  for (auto& [key, tensor] : tensors) {
    if (key.starts_with(kClassifier)) key = (dense ? "classifier." : "fc.") + key.substr(kClassifier.size());
    if (dense) key = dense_name(key);
  }
}

}  // namespace palimpsest::models
