#pragma once

#include <span>
#include <string_view>

namespace palimpsest::cli {

/// A file of examples/paper. The build writes the source of these functions from the files
/// (cmake/EmbedRecipes.cmake), so that an installed program has them.
struct Recipe {
  std::string_view name;  ///< without .toml
  std::string_view text;
};

std::span<const Recipe> paper_recipes();  ///< of examples/paper
std::span<const Recipe> small_recipes();  ///< of examples/paper/small

}  // namespace palimpsest::cli
