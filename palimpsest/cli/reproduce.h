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
/// Reads the recipe of options.run.row, or of its small form with what that changes: the flags in the row's file.
void read_row_recipe(Options& options);
/// Returns the epochs of warm-up of a small row that trains `epochs`: the same share of them as in its recipe.
double small_warmup(const Options& recipe, int64_t epochs);

}  // namespace palimpsest::cli
