#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest::testing {

/// Overwrites the bytes of a header from `at` on.
inline void put_field(std::string& block, std::size_t at, std::string_view text) {
  std::copy(text.begin(), text.end(), block.begin() + static_cast<std::ptrdiff_t>(at));
}
inline void put_octal(std::string& block, std::size_t at, int digits, uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "%0*llo", digits, static_cast<unsigned long long>(value));
  put_field(block, at, text);
}

/// Returns a header of 512 bytes with its checksum.
inline std::string with_checksum(std::string block) {
  put_field(block, 148, "        ");
  uint64_t sum = 0;
  for (const unsigned char byte : block) sum += byte;
  put_octal(block, 148, 6, sum);
  block[154] = '\0';
  return block;
}

/// Returns a ustar header of a member, with its checksum.
inline std::string tar_header(std::string_view name, uint64_t size, char type = '0') {
  std::string block(512, '\0');
  put_field(block, 0, name);
  put_field(block, 100, "0000644");
  put_octal(block, 124, 11, size);
  block[156] = type;
  put_field(block, 257, "ustar");
  put_field(block, 263, "00");
  return with_checksum(std::move(block));
}

/// Returns a member: its header, its contents, and the zeros up to the next block.
inline std::string tar_member(std::string_view name, const std::string& contents, char type = '0') {
  return tar_header(name, contents.size(), type) + contents +
         std::string((512 - contents.size() % 512) % 512, '\0');
}

inline const std::string kTarEnd(1024, '\0');

/// Returns an archive of members: name, contents.
inline std::string tar(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string archive;
  for (const auto& [name, contents] : members) archive += tar_member(name, contents);
  return archive + kTarEnd;
}

}  // namespace palimpsest::testing
