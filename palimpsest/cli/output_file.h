#pragma once

#include "palimpsest/cli/options.h"

#include <filesystem>

namespace palimpsest::cli {

/// Returns the file that writing to `file` replaces: the target of a symbolic link.
std::filesystem::path written_file(const std::filesystem::path& file);

/// Throws Error(kUsage) if `file` is the checkpoint or the configuration that the command reads, or a file of
/// any run (train::is_file_of_run): --overwrite does not replace these. Throws Error(kOutput) if `file`
/// exists and --overwrite is not given. Follows symbolic links, as writing does. `flag` names the file:
/// "--output".
void check_replaceable(const std::filesystem::path& file, const char* flag, const Options& options);

/// Throws as check_replaceable does, and Error(kOutput) if `file` lies in the folder of a training at work.
/// Call it before the work begins.
void check_output_file(const std::filesystem::path& file, const char* flag, const Options& options);

/// Does the same for a file of tensors. Throws Error(kUsage), too, if --overwrite would replace a file that has neither
/// such a name (.safetensors) nor such a content.
void check_tensor_file(const std::filesystem::path& file, const char* flag, const Options& options);

/// Does the same for a picture of predict and eval in --output. Throws Error(kUsage), too, if --overwrite
/// would replace a file that this program did not write (io::png_software): a label or a photo of the user's.
void check_picture_file(const std::filesystem::path& file, const Options& options);

/// Throws Error(kOutput) if a training holds the folder of `file`. Call it just before the file is written:
/// the training may have begun during the work.
void check_not_in_use(const std::filesystem::path& file);

}  // namespace palimpsest::cli
