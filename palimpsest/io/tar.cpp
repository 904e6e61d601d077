#include "palimpsest/io/tar.h"

#include "palimpsest/base/error.h"
#include "palimpsest/base/printable.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>
#include <system_error>

namespace palimpsest::io {
namespace {

constexpr uint64_t kBlock = 512;
constexpr uint64_t kMostText = 1 << 20;  // of a long name or of pax records, in bytes
constexpr uint64_t kMostBytes = uint64_t{1} << 62;

uint64_t in_blocks(uint64_t bytes) {
  return (bytes + kBlock - 1) / kBlock * kBlock;
}

/// Returns the text of a field, which ends at its first zero byte.
std::string_view text_of(std::string_view field) {
  return field.substr(0, field.find('\0'));
}

/// Returns the number of a field: octal digits between blanks, or base 256 behind a first byte of 0x80.
/// Nothing for anything else.
std::optional<uint64_t> number_of(std::string_view field) {
  const auto first = static_cast<unsigned char>(field[0]);
  uint64_t value = 0;
  if (first == 0x80) {
    for (const char byte : field.substr(1)) {
      if (value >> 54 != 0) return std::nullopt;
      value = value << 8 | static_cast<unsigned char>(byte);
    }
    return value;
  }
  field = text_of(field);
  while (field.starts_with(' ')) field.remove_prefix(1);
  while (field.ends_with(' ')) field.remove_suffix(1);
  for (const char digit : field) {
    if (digit < '0' || digit > '7') return std::nullopt;
    value = value << 3 | static_cast<uint64_t>(digit - '0');  // at most 12 digits
  }
  return value;
}

/// The sum of the bytes of a header, its own field counted as blanks. Old programs added signed bytes.
bool checksum_fits(std::string_view block) {
  constexpr std::size_t kField = 148, kFieldBytes = 8;
  const auto stored = number_of(block.substr(kField, kFieldBytes));
  uint64_t sum = 0;
  int64_t signed_sum = 0;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const char byte = i >= kField && i < kField + kFieldBytes ? ' ' : block[i];
    sum += static_cast<unsigned char>(byte);
    signed_sum += static_cast<signed char>(byte);
  }
  return stored && (*stored == sum || static_cast<int64_t>(*stored) == signed_sum);
}

/// The values of a pax header that count here.
struct PaxValues {
  std::optional<std::string> path;
  std::optional<uint64_t> size;
  bool sparse = false;
};

/// Reads records "LENGTH KEY=VALUE\n" into `values`. Returns whether all of them are well formed.
bool parse_pax(std::string_view records, PaxValues& values) {
  while (!records.empty()) {
    std::size_t length = 0;
    const auto [end, error] = std::from_chars(records.data(), records.data() + records.size(), length);
    const auto digits = static_cast<std::size_t>(end - records.data());
    if (error != std::errc{} || length > records.size() || length < digits + 3 || *end != ' ' ||
        records[length - 1] != '\n')
      return false;
    const std::string_view record = records.substr(digits + 1, length - digits - 2);
    records.remove_prefix(length);
    const std::size_t equals = record.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") values.path = value;
    if (key.starts_with("GNU.sparse.")) values.sparse = true;
    if (key != "size") continue;
    uint64_t size = 0;
    const auto [stop, wrong] = std::from_chars(value.data(), value.data() + value.size(), size);
    if (wrong != std::errc{} || stop != value.data() + value.size() || size > kMostBytes) return false;
    values.size = size;
  }
  return true;
}

bool has_contents(char type) {
  return type == '0' || type == '\0' || type == '7' || type == 'S';
}

bool is_link(char type) {
  return type == '1' || type == '2';
}

/// Returns whether nothing follows a header of this type: links, devices, folders, pipes.
bool has_no_contents(char type) {
  return type >= '1' && type <= '6';
}

}  // namespace

struct TarReader::Header {
  char type;
  uint64_t size;
  std::string name;
};

TarReader::TarReader(std::filesystem::path path) : path_(std::move(path)) {
  do {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would block
  } while (descriptor_ < 0 && errno == EINTR);
  struct stat status{};
  int error_number = descriptor_ < 0 || fstat(descriptor_, &status) != 0 ? errno : 0;
  const bool regular = error_number != 0 || S_ISREG(status.st_mode);
  if (error_number != 0 || !regular) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw Error(ErrorKind::kData,
                "cannot read tar archive '" + path_.string() +
                    "': " + (regular ? std::generic_category().message(error_number) : "not a regular file"));
  }
  size_ = static_cast<uint64_t>(status.st_size);
}

TarReader::~TarReader() {
  ::close(descriptor_);
}

std::optional<TarMember> TarReader::next() {
  std::optional<std::string> long_name;
  PaxValues pax;
  for (bool extended = false;;) {
    const uint64_t at = position_;
    std::optional<Header> header = read_header();
    if (!header) {
      if (extended) fail("the header of a long name has no member", at);
      check_end();
      return std::nullopt;
    }
    if (header->type == 'L' || header->type == 'K' || header->type == 'x' || header->type == 'g') {
      const std::string text = read_text(*header, "its extended header");
      if (header->type == 'L') long_name = text_of(text);
      PaxValues of_all;  // the paths and sizes of a global header make no sense
      if ((header->type == 'x' && !parse_pax(text, pax)) || (header->type == 'g' && !parse_pax(text, of_all)))
        fail("its pax header is damaged", at);
      extended = extended || header->type != 'g';  // the last header may be a global one
      continue;
    }
    TarMember member{pax.path    ? *pax.path
                     : long_name ? *long_name
                                 : header->name,
                     position_, pax.size.value_or(header->size)};
    if (header->type == 'S' || pax.sparse)
      fail("member '" + printable(member.name) + "' is a sparse file, which is not read", at);
    if (!has_no_contents(header->type)) {
      if (member.size > size_ - position_)
        fail("it is truncated: member '" + printable(member.name) + "' has " + std::to_string(member.size) +
                 " bytes, of which " + std::to_string(size_ - position_) + " are there",
             at);
      position_ += std::min(in_blocks(member.size), size_ - position_);
    }
    last_ = member.name;
    member.is_link = is_link(header->type);
    if (member.is_link) member.size = 0;
    if ((has_contents(header->type) || member.is_link) && !member.name.ends_with('/')) return member;
    extended = false;
    long_name.reset();
    pax = {};
  }
}

std::optional<TarReader::Header> TarReader::read_header() {
  const uint64_t at = position_;
  if (size_ - at < kBlock)
    fail(size_ == at ? "it is truncated: it lacks the zeros that end an archive"
                     : "it is truncated in the header of a member",
         at);
  char bytes[kBlock];
  read_at(at, bytes, kBlock, "a header");
  const std::string_view block(bytes, kBlock);
  position_ += kBlock;
  if (block.find_first_not_of('\0') == std::string_view::npos) return std::nullopt;
  if (at == 0 && block.starts_with("\x1f\x8b")) fail("it is compressed (gzip): unpack it to a .tar", at);
  if (!checksum_fits(block))
    fail(at == 0 ? "it is no tar archive, or damaged: the checksum of its first header is wrong"
                 : "it is damaged: the checksum of a header is wrong",
         at);
  const auto size = number_of(block.substr(124, 12));
  if (!size || *size > kMostBytes) fail("it is damaged: a header has no valid size", at);
  Header header{block[156], *size, std::string(text_of(block.substr(0, 100)))};
  // GNU's own format has times where ustar has the first part of the name.
  if (block.substr(257, 6) == std::string_view("ustar\0", 6))
    if (const auto prefix = text_of(block.substr(345, 155)); !prefix.empty())
      header.name = std::string(prefix) + "/" + header.name;
  return header;
}

std::string TarReader::read_text(const Header& header, const char* what) {
  const uint64_t at = position_ - kBlock;
  if (header.size > kMostText)
    fail(std::string(what) + " has " + std::to_string(header.size) + " bytes, at most " +
             std::to_string(kMostText) + " are read",
         at);
  if (in_blocks(header.size) > size_ - position_) fail(std::string("it is truncated in ") + what, at);
  std::string text(header.size, '\0');
  read_at(position_, text.data(), text.size(), what);
  position_ += in_blocks(header.size);
  return text;
}

// Programs end an archive with up to 10 KiB of zeros. `cat a.tar b.tar` puts another one behind them, which
// would silently be left out.
void TarReader::check_end() const {
  constexpr uint64_t kMostZeros = 32768;
  std::string rest(std::min(size_ - position_, kMostZeros), '\0');
  read_at(position_, rest.data(), rest.size(), "the end");
  const std::size_t other = rest.find_first_not_of('\0');
  if (other != std::string::npos)
    fail("something follows its end: give archives one by one, not joined", position_ + other);
}

std::string TarReader::read(const TarMember& member) const {
  const std::string what = "member '" + printable(member.name) + "'";
  if (member.offset > size_ || member.size > size_ - member.offset)
    fail(what + " lies beyond its end", member.offset);
  std::string bytes(member.size, '\0');
  read_at(member.offset, bytes.data(), bytes.size(), what);
  return bytes;
}

void TarReader::will_read(uint64_t offset, uint64_t bytes) const {
  (void)::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                        POSIX_FADV_WILLNEED);  // a hint: its failure changes nothing
}

void TarReader::read_at(uint64_t offset, void* data, std::size_t bytes, const std::string& what) const {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // one system call gives 2 GiB at most
  for (auto* to = static_cast<char*>(data); bytes > 0;) {
    const ssize_t got = ::pread(descriptor_, to, std::min(bytes, kMostAtOnce), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("reading " + what + ": " + std::generic_category().message(errno), offset);
    if (got == 0) fail("it became shorter while " + what + " was read", offset);
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

void TarReader::fail(const std::string& reason, uint64_t at) const {
  throw Error(ErrorKind::kData, "cannot read tar archive '" + path_.string() + "': " + reason + " (at byte " +
                                    std::to_string(at) + " of " + std::to_string(size_) +
                                    (last_.empty() ? "" : ", after member '" + printable(last_) + "'") + ")");
}

}  // namespace palimpsest::io
