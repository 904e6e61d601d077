#include "palimpsest/data/identity.h"

#include <cstdio>
#include <string_view>
#include <system_error>

namespace palimpsest::data {
namespace {

namespace fs = std::filesystem;

/// FNV-1a of 64 bits.
/// Source: Fowler, Noll, Vo, Eastlake, "The FNV Non-Cryptographic Hash Algorithm".
class Digest {
 public:
  void add(std::string_view bytes) {
    for (const char byte : bytes) state_ = (state_ ^ static_cast<uint8_t>(byte)) * 0x100000001B3ull;
    add_zero();
  }
  void add(uint64_t number) {
    for (int i = 0; i < 8; ++i) state_ = (state_ ^ (number >> (8 * i) & 0xFF)) * 0x100000001B3ull;
  }
  uint64_t value() const { return state_; }

 private:
  void add_zero() { state_ *= 0x100000001B3ull; }  // the end of a text

  uint64_t state_ = 0xCBF29CE484222325ull;
};

}  // namespace

std::string files_identity(const std::vector<std::vector<fs::path>>& files, std::size_t images) {
  Digest digest;
  for (const auto& list : files) {
    for (const fs::path& file : list) {
      digest.add(file.parent_path().filename().native());
      digest.add(file.filename().native());
      std::error_code missing;  // a file that is gone has a size of its own: -1
      digest.add(static_cast<uint64_t>(fs::file_size(file, missing)));
    }
  }
  char text[64];
  std::snprintf(text, sizeof text, "%zu images (%016llx)", images,
                static_cast<unsigned long long>(digest.value()));
  return text;
}

}  // namespace palimpsest::data
