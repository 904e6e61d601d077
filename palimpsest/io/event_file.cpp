#include "palimpsest/io/event_file.h"

#include "palimpsest/base/error.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <system_error>

namespace palimpsest::io {
namespace {

// Readers know a file of events by "tfevents" in its name.
constexpr std::string_view kEventPrefix = "events.out.tfevents.", kEventSuffix = ".palimpsest";

/// Returns the first step of an event file of this class; nothing for another file.
std::optional<int64_t> first_step_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kEventPrefix) || !name.ends_with(kEventSuffix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size() - kEventSuffix.size();
  const auto [rest, error] = std::from_chars(name.data() + kEventPrefix.size(), end, step);
  return error == std::errc() && rest == end ? std::optional(step) : std::nullopt;
}

// Protocol buffers: each field is a key, (number << 3 | wire type) as a varint, and its value.
// Wire types: 0 varint, 1 eight bytes, 2 a length and that many bytes, 5 four bytes.

void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class T>
void append_fixed(std::string& out, T value) {
  static_assert(std::endian::native == std::endian::little);
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string varint_field(int number, uint64_t value) {
  std::string out;
  append_varint(out, static_cast<uint64_t>(number) << 3);
  append_varint(out, value);
  return out;
}

std::string double_field(int number, double value) {
  std::string out;
  append_varint(out, static_cast<uint64_t>(number) << 3 | 1);
  append_fixed(out, value);
  return out;
}

std::string float_field(int number, float value) {
  std::string out;
  append_varint(out, static_cast<uint64_t>(number) << 3 | 5);
  append_fixed(out, value);
  return out;
}

std::string bytes_field(int number, std::string_view bytes) {
  std::string out;
  append_varint(out, static_cast<uint64_t>(number) << 3 | 2);
  append_varint(out, bytes.size());
  return out.append(bytes);
}

std::string doubles_field(int number, const std::vector<double>& values) {
  std::string packed;
  for (double value : values) append_fixed(packed, value);
  return bytes_field(number, packed);
}

/// Event.summary with one Summary.Value of `tag`; `value` is its field of the value.
std::string summary_value(const std::string& tag, const std::string& value) {
  return bytes_field(1, bytes_field(1, tag) + value);
}

constexpr int kEventSummary = 5, kEventSessionLog = 7;

/// Frames a message as TensorFlow's files of records do.
std::string record(const std::string& message) {
  std::string length, out;
  append_fixed(length, static_cast<uint64_t>(message.size()));
  out = length;
  append_fixed(out, masked_crc32c(length));
  out += message;
  append_fixed(out, masked_crc32c(message));
  return out;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void fail_to_write(const std::filesystem::path& path, int reason) {
  throw Error(ErrorKind::kOutput, fmt::format("cannot write {}: {}", path.string(), std::strerror(reason)));
}

}  // namespace

uint32_t crc32c(const std::string& bytes) {
  static const auto kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t crc = i;
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
      table[i] = crc;
    }
    return table;
  }();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

uint32_t masked_crc32c(const std::string& bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

bool is_event_file(const std::filesystem::path& file) {
  return first_step_of(file).has_value();
}

void remove_event_files(const std::filesystem::path& folder, int64_t first_step) {
  std::error_code error;
  std::vector<std::filesystem::path> stale;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (const auto step = first_step_of(entry->path()); step && *step >= first_step)
      stale.push_back(entry->path());
  for (const auto& path : stale) {
    std::filesystem::remove(path, error);
    if (error) fail_to_write(path, error.value());
  }
}

EventFile::EventFile(const std::filesystem::path& folder, int64_t first_step)
    : path_(folder / fmt::format("{}{:010}{}", kEventPrefix, first_step, kEventSuffix)) {
  remove_event_files(folder, first_step);
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_to_write(path_, errno);
  write_event(first_step, bytes_field(3, "brain.Event:2"));  // Event.file_version
  if (first_step > 0) write_event(first_step, bytes_field(kEventSessionLog, varint_field(1, 1)));  // START
}

EventFile::~EventFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

EventFile::EventFile(EventFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

EventFile& EventFile::operator=(EventFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void EventFile::write_event(int64_t step, const std::string& fields) {
  if (descriptor_ < 0) return;
  const std::string bytes =
      record(double_field(1, seconds_since_1970()) + varint_field(2, static_cast<uint64_t>(step)) + fields);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_write(path_, errno);
    done += static_cast<std::size_t>(count);
  }
}

void EventFile::add_scalars(int64_t step,
                            const std::vector<std::pair<std::string, double>>& tags_and_values) {
  std::string values;
  for (const auto& [tag, value] : tags_and_values)
    values += summary_value(tag, float_field(2, static_cast<float>(value)));
  if (!values.empty()) write_event(step, bytes_field(kEventSummary, values));
}

void EventFile::add_png(int64_t step, const std::string& tag, const std::string& png, int64_t height,
                        int64_t width) {
  const std::string image = varint_field(1, static_cast<uint64_t>(height)) +
                            varint_field(2, static_cast<uint64_t>(width)) + varint_field(3, 3) +  // RGB
                            bytes_field(4, png);
  write_event(step, bytes_field(kEventSummary, summary_value(tag, bytes_field(4, image))));
}

void EventFile::add_histogram(int64_t step, const std::string& tag, const Histogram& h) {
  if (h.upper_limits.size() != h.counts.size())
    throw std::invalid_argument(
        fmt::format("[events] histogram '{}' needs as many counts as limits, got {} and {}", tag,
                    h.counts.size(), h.upper_limits.size()));
  double values = 0;
  for (double count : h.counts) values += count;
  const std::string message = double_field(1, h.low) + double_field(2, h.high) + double_field(3, values) +
                              double_field(4, h.sum) + double_field(5, h.sum_of_squares) +
                              doubles_field(6, h.upper_limits) + doubles_field(7, h.counts);
  write_event(step, bytes_field(kEventSummary, summary_value(tag, bytes_field(5, message))));
}

}  // namespace palimpsest::io
