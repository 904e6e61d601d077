#include "tests/support/cuda_emulator/shared_memory.h"

#include "tests/support/cuda_emulator/sanitizers.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <stdexcept>

namespace palimpsest::cuda_emulator {
namespace {

constexpr std::size_t kRedZone = 128;  // the width of a warp's access to 4 bytes per lane
constexpr std::size_t kAlignment = 128;
constexpr std::size_t kArenaBytes = 320 * 1024;  // 227 KiB, and red zones for more than a hundred variables
// Lists are allocated before the threads run: ThreadSanitizer would take a list that grows in one thread for
// memory that this thread frees while others use it.
constexpr std::size_t kMostVariables = 256;
constexpr unsigned char kRed = 0xa5, kNan = 0xff;

std::size_t rounded_up(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

SharedLayout::SharedLayout(std::size_t dynamic_bytes) {
  pieces_.reserve(kMostVariables);
  used_ = kRedZone;
  add(nullptr, dynamic_bytes);
}

std::size_t SharedLayout::add(const void* key, std::size_t bytes) {
  pieces_.push_back({key, used_, bytes});
  used_ = rounded_up(used_ + bytes + kRedZone);
  asked_ += bytes;
  return pieces_.size() - 1;
}

std::size_t SharedLayout::piece(const void* key, std::size_t bytes, std::size_t limit) {
  for (std::size_t i = 0; i < pieces_.size(); ++i)
    if (pieces_[i].key == key) return i;
  if (pieces_.size() == kMostVariables)
    throw std::runtime_error("more than 255 shared variables in a kernel");
  const std::size_t added = add(key, bytes);
  if (asked_ > limit || used_ > kArenaBytes)
    throw std::runtime_error("shared memory: a block may have " + std::to_string(limit) +
                             " bytes, the kernel declares " + std::to_string(asked_));
  return added;
}

// No memset: ThreadSanitizer intercepts it, and would take the first thread at a declaration for the writer
// of what others read.
__attribute__((optimize("no-tree-loop-distribute-patterns"))) static void fill(char* begin, std::size_t bytes,
                                                                               unsigned char value) {
  for (std::size_t i = 0; i < bytes; ++i) begin[i] = static_cast<char>(value);
}

SharedMemory::SharedMemory() : arena_(static_cast<char*>(std::aligned_alloc(kAlignment, kArenaBytes))) {
  if (!arena_) throw std::bad_alloc();
  declared_.resize(kMostVariables);
  fill(arena_, kArenaBytes, kRed);
  forbid(arena_, kArenaBytes);
}

SharedMemory::~SharedMemory() {
  allow(arena_, kArenaBytes);
  std::free(arena_);
}

char* SharedMemory::declare(const SharedLayout& layout, std::size_t piece) {
  const SharedLayout::Piece& p = layout.pieces()[piece];
  char* const address = arena_ + p.begin;
  if (!declared_[piece]) {
    declared_[piece] = 1;
    allow(address, p.bytes);
    fill(address, p.bytes, kNan);
    used_ = std::max(used_, p.begin + p.bytes + kRedZone);
  }
  return address;
}

std::string SharedMemory::end_block(const SharedLayout& layout) {
  allow(arena_, used_);
  std::string said = damage(layout);
  fill(arena_, used_, kRed);
  forbid(arena_, used_);
  declared_.assign(kMostVariables, 0);
  used_ = 0;
  return said;
}

std::string SharedMemory::damage(const SharedLayout& layout) const {
  for (std::size_t i = 0; i < declared_.size(); ++i) {
    if (!declared_[i]) continue;
    const SharedLayout::Piece& p = layout.pieces()[i];
    const char *begin = arena_ + p.begin, *end = begin + p.bytes;
    const char* damaged = begin - kRedZone;
    while (damaged < end + kRedZone && (damaged == begin || static_cast<unsigned char>(*damaged) == kRed))
      damaged = damaged == begin ? end : damaged + 1;
    if (damaged == end + kRedZone) continue;
    const bool in_front = damaged < begin;
    return "overrun: byte " + std::to_string(in_front ? begin - damaged : damaged - end) +
           (in_front ? " before " : " behind ") +
           (p.key ? "a shared variable of " : "the dynamic shared memory of ") + std::to_string(p.bytes) +
           " bytes was written";
  }
  return "";
}

bool SharedMemory::contains(const void* address) const {
  const auto a = reinterpret_cast<std::uintptr_t>(address), begin = reinterpret_cast<std::uintptr_t>(arena_);
  return a >= begin && a < begin + kArenaBytes;
}

bool SharedMemory::is_declared(std::size_t offset, const SharedLayout& layout) const {
  for (std::size_t i = 0; i < declared_.size(); ++i) {
    const SharedLayout::Piece& p = layout.pieces()[i];
    if (declared_[i] && offset >= p.begin && offset <= p.begin + p.bytes) return true;
  }
  return false;
}

}  // namespace palimpsest::cuda_emulator
