#pragma once

namespace palimpsest::cli {

/// The settings of the demonstration as TOML: the text of examples/demo.toml. They replace the defaults
/// (cli/command_line.h); a file or a flag overrides each of them.
const char* demo_config();

}  // namespace palimpsest::cli
