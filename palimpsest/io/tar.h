#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace palimpsest::io {

/// A regular file in a tar archive, or a link to one.
struct TarMember {
  std::string name;      ///< with its folders, "shoes/17.jpg"
  uint64_t offset = 0;   ///< of its first byte in the archive
  uint64_t size = 0;     ///< in bytes; 0 of a link
  bool is_link = false;  ///< hard or symbolic; the archive has no bytes of it
};

/// A tar archive on disk: ustar, GNU (long names, sizes above 8 GiB) or pax (path, size). Folders and devices
/// are passed over. Memory: one block of 512 bytes, and a name.
///
///   TarReader archive("train-000000.tar");
///   while (const auto member = archive.next()) use(archive.read(*member));
///
/// Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; the GNU tar manual, "The
/// Standard Format".
class TarReader {
 public:
  /// Throws Error(kData), with the path, for a file that cannot be opened or is no regular file.
  explicit TarReader(std::filesystem::path path);
  ~TarReader();
  TarReader(const TarReader&) = delete;
  TarReader& operator=(const TarReader&) = delete;

  /// Returns the next member, from the first one on, or nothing at the end of the archive. Reads headers only.
  /// Throws Error(kData) with path, byte and last member for an archive that is truncated (also one without
  /// the zeros that end an archive), damaged, sparse, or followed by another archive.
  std::optional<TarMember> next();

  /// Returns the bytes of a member. Several threads may call this at the same time. Throws Error(kData) if the
  /// file has become shorter.
  std::string read(const TarMember& member) const;

  /// Tells the system that these bytes are read soon, so that it reads them in sequence and in the background.
  void will_read(uint64_t offset, uint64_t bytes) const;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }  ///< of the archive in bytes, when it was opened

 private:
  struct Header;
  [[noreturn]] void fail(const std::string& reason, uint64_t at) const;
  void read_at(uint64_t offset, void* data, std::size_t bytes, const std::string& what) const;
  /// Returns the header at position_, or nothing if its block is zeros, which is the end.
  std::optional<Header> read_header();
  std::string read_text(const Header& header, const char* what);
  void check_end() const;

  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  uint64_t position_ = 0;  // of the next header
  std::string last_;       // name of the member before it
};

}  // namespace palimpsest::io
