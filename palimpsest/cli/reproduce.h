#pragma once

#include "palimpsest/cli/options.h"

#include <string>

namespace palimpsest::cli {

/// The text of a recipe, and its name for messages.
struct RowRecipe {
  std::string text, name;
};
/// Returns the recipe of options.run.row, or of its small form.
RowRecipe row_recipe(const Options& options);
/// Sets what the row's small form changes in its recipe: the flags in the row's file.
void set_small_flags(Options& options);

}  // namespace palimpsest::cli
