#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace palimpsest::cuda_emulator {

/// Where the shared variables of one launch lie, the same in each of its blocks. A variable gets its place
/// when the first thread comes to its declaration.
class SharedLayout {
 public:
  explicit SharedLayout(std::size_t dynamic_bytes);

  struct Piece {
    const void* key = nullptr;  ///< names the declaration; null for the dynamic memory
    std::size_t begin = 0, bytes = 0;
  };

  /// The piece's number; `key` is new or has been seen with the same size. Throws where what a block may
  /// have (`limit`) is exceeded.
  std::size_t piece(const void* key, std::size_t bytes, std::size_t limit);
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::size_t add(const void* key, std::size_t bytes);

  std::vector<Piece> pieces_;
  std::size_t used_ = 0;   // of the arena, red zones included
  std::size_t asked_ = 0;  // by the kernel
};

/// The shared memory of one block: every variable between red zones, filled with bytes that read as NaN.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// The variable, which from now on may be touched.
  char* declare(const SharedLayout& layout, std::size_t piece);
  /// The block has ended: nobody has business here any more. Returns "", or what was written beside a
  /// variable.
  std::string end_block(const SharedLayout& layout);

  char* begin() { return arena_; }
  bool contains(const void* address) const;
  /// Whether the byte at `offset` (or the one before) belongs to a variable that this block has declared.
  bool is_declared(std::size_t offset, const SharedLayout& layout) const;

 private:
  std::string damage(const SharedLayout& layout) const;

  char* arena_;
  std::vector<char> declared_;  // by piece
  std::size_t used_ = 0;        // bytes from the start that may hold something other than red zone
};

}  // namespace palimpsest::cuda_emulator
