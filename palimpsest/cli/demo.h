#pragma once

#include "palimpsest/cli/options.h"

namespace palimpsest::cli {

/// The demonstration's own settings as TOML: examples/demo.toml, word for word.
const char* demo_config();

/// `given` with the demonstration's settings for all that the user did not say.
Options demo_options(const Options& given);

}  // namespace palimpsest::cli
