#pragma once

#include "palimpsest/base/random.h"

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::fuzz {

/// Returns `bytes` with 1 to 8 random edits: flipped bits, replaced, removed, repeated or exchanged pieces,
/// pieces of another example, and words of the format. The result is a function of the arguments and the
/// state of `random`.
std::string mutate(std::string bytes, const std::vector<std::string>& corpus,
                   const std::vector<std::string>& words, Random& random);

/// A PNG file after its signature, as chunks of type and body.
struct PngChunk {
  std::string type, body;
};
std::vector<PngChunk> png_chunks(std::string_view file);
/// Returns the file of the chunks, with correct lengths and checksums.
std::string png_file(const std::vector<PngChunk>& chunks);
/// Mutates a chunk, or the pixels before they are deflated, so that the damage lies behind correct checksums.
std::string mutate_png(std::string_view file, const std::vector<std::string>& corpus, Random& random);

}  // namespace palimpsest::fuzz
