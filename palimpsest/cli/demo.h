#pragma once

namespace palimpsest::cli {

/// The demonstration's settings as TOML: examples/demo.toml, word for word. They take the place of the
/// defaults (cli/command_line.h): a file or a flag still overrides each.
const char* demo_config();

}  // namespace palimpsest::cli
