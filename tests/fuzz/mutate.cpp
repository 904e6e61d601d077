#include "tests/fuzz/mutate.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace palimpsest::fuzz {
namespace {

std::size_t below(Random& random, std::size_t end) {
  return static_cast<std::size_t>(random.below(static_cast<int64_t>(std::max<std::size_t>(end, 1))));
}

template <class List>
const auto& any_of(const List& list, Random& random) {
  return list[below(random, list.size())];
}

std::string big_endian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

uint32_t from_big_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::string deflated(const std::string& bytes, int level) {
  uLongf size = compressBound(bytes.size());
  std::string packed(size, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size, reinterpret_cast<const Bytef*>(bytes.data()),
            bytes.size(), level);
  packed.resize(size);
  return packed;
}

std::string inflated(const std::string& packed) {
  std::string bytes(1 << 20, '\0');
  uLongf size = bytes.size();
  if (uncompress(reinterpret_cast<Bytef*>(bytes.data()), &size, reinterpret_cast<const Bytef*>(packed.data()),
                 packed.size()) != Z_OK)
    return "";
  bytes.resize(size);
  return bytes;
}

}  // namespace

std::string mutate(std::string bytes, const std::vector<std::string>& corpus,
                   const std::vector<std::string>& words, Random& random) {
  constexpr std::array<uint32_t, 8> kSizes{0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF};
  for (std::size_t edits = 1 + below(random, 8); edits > 0; --edits) {
    const std::size_t at = below(random, bytes.size() + 1);
    const std::size_t length = below(random, 32);
    switch (below(random, 10)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(random, 8)));
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(below(random, 256));
        break;
      case 2:
        bytes.erase(at, length);
        break;
      case 3:
        bytes.insert(at, bytes.substr(below(random, bytes.size() + 1), length));
        break;
      case 4:
        if (!words.empty()) bytes.insert(at, any_of(words, random));
        break;
      case 5:
        if (!words.empty()) bytes.replace(at, std::min(length, bytes.size() - at), any_of(words, random));
        break;
      case 6: {  // a piece of another example
        const std::string& other = any_of(corpus, random);
        bytes.replace(at, std::min(length, bytes.size() - at), other, below(random, other.size() + 1),
                      below(random, 256));
        break;
      }
      case 7: {  // a number that is a limit somewhere
        const std::string number = big_endian(any_of(kSizes, random));
        const std::size_t size = std::size_t{1} << below(random, 3);
        bytes.replace(at, std::min(size, bytes.size() - at), number, 4 - size, size);
        break;
      }
      case 8:
        bytes.resize(at);
        break;
      default:  // many times the same: depth, length
        if (at < bytes.size() && bytes.size() < 65536) {
          const std::string piece = bytes.substr(at, 1 + below(random, 6));
          std::string repeated;
          for (std::size_t i = below(random, 400); i > 0; --i) repeated += piece;
          bytes.insert(at, repeated);
        }
    }
  }
  return bytes;
}

std::vector<PngChunk> png_chunks(std::string_view file) {
  std::vector<PngChunk> chunks;
  for (std::size_t at = 8; at + 12 <= file.size();) {
    const std::size_t length = from_big_endian(file.substr(at));
    if (length > file.size() - at - 12) break;
    chunks.push_back({std::string(file.substr(at + 4, 4)), std::string(file.substr(at + 8, length))});
    at += 12 + length;
  }
  return chunks;
}

std::string png_file(const std::vector<PngChunk>& chunks) {
  std::string file = "\x89PNG\r\n\x1A\n";
  for (const auto& [type, body] : chunks) {
    const std::string checked = type + body;
    const uLong crc =
        crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
    file += big_endian(static_cast<uint32_t>(body.size())) + checked + big_endian(static_cast<uint32_t>(crc));
  }
  return file;
}

std::string mutate_png(std::string_view file, const std::vector<std::string>& corpus, Random& random) {
  static const std::vector<std::string> types{"IHDR", "PLTE", "IDAT", "IEND", "tRNS", "gAMA",
                                              "cHRM", "sRGB", "iCCP", "tEXt", "zTXt", "iTXt",
                                              "bKGD", "pHYs", "sBIT", "hIST", "tIME", "eXIf"};
  std::vector<PngChunk> chunks = png_chunks(file);
  for (std::size_t edits = 1 + below(random, 3); edits > 0 && !chunks.empty(); --edits) {
    PngChunk& chunk = chunks[below(random, chunks.size())];
    switch (below(random, 8)) {
      case 0:
        chunk.type = any_of(types, random);
        break;
      case 1: {  // pixels that no encoder wrote, in a stream that is whole
        std::string pixels = inflated(chunk.body);
        if (chunk.type == "IDAT" && !pixels.empty())
          chunk.body = deflated(mutate(pixels, corpus, {}, random), static_cast<int>(below(random, 10)));
        break;
      }
      case 2: {
        const PngChunk copy = chunk;
        chunks.insert(chunks.begin() + static_cast<std::ptrdiff_t>(below(random, chunks.size() + 1)), copy);
        break;
      }
      case 3:
        chunks.erase(chunks.begin() + static_cast<std::ptrdiff_t>(below(random, chunks.size())));
        break;
      case 4:  // size, depth, type and interlacing: small numbers, which are often right
        if (chunk.type == "IHDR" && chunk.body.size() == 13) {
          chunk.body[3 + 4 * below(random, 2)] = static_cast<char>(below(random, 40));
          static constexpr std::array<char, 6> kDepths{1, 2, 4, 8, 16, 3}, kColors{0, 2, 3, 4, 6, 1};
          chunk.body[8] = any_of(kDepths, random);
          chunk.body[9] = any_of(kColors, random);
          chunk.body[12] = static_cast<char>(below(random, 2));
        }
        break;
      case 5: {  // a stream in two chunks
        const std::size_t cut = below(random, chunk.body.size() + 1);
        const PngChunk rest{chunk.type, chunk.body.substr(cut)};
        chunk.body.resize(cut);
        chunks.insert(chunks.begin() + (&chunk - chunks.data()) + 1, rest);
        break;
      }
      default:
        chunk.body = mutate(chunk.body, corpus, {}, random);
    }
  }
  std::string mutated = png_file(chunks);
  return below(random, 16) == 0 ? mutate(mutated, corpus, {}, random) : mutated;
}

}  // namespace palimpsest::fuzz
