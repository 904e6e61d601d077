#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace palimpsest::cuda_emulator {

/// The places of the shared variables of one launch, which are the same in all blocks. A variable gets its
/// place when the first thread reaches its declaration.
class SharedLayout {
 public:
  explicit SharedLayout(std::size_t dynamic_bytes);

  struct Piece {
    const void* key = nullptr;  ///< identifies the declaration; null for the dynamic memory
    std::size_t begin = 0, bytes = 0;
  };

  /// Returns the index of the piece with this key, which is new or has the same size as before. Throws if the
  /// pieces exceed `limit`, the shared memory of a block.
  std::size_t piece(const void* key, std::size_t bytes, std::size_t limit);
  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::size_t add(const void* key, std::size_t bytes);

  std::vector<Piece> pieces_;
  std::size_t used_ = 0;   // bytes of the arena, with red zones
  std::size_t asked_ = 0;  // bytes that the kernel declares
};

/// The shared memory of one block: every variable lies between red zones and is filled with NaN.
class SharedMemory {
 public:
  SharedMemory();
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Returns the variable and allows access to it.
  char* declare(const SharedLayout& layout, std::size_t piece);
  /// Forbids all access, since the block has ended. Returns "", or a description of a write beside a
  /// variable.
  std::string end_block(const SharedLayout& layout);

  char* begin() { return arena_; }
  bool contains(const void* address) const;
  /// Whether the byte at `offset`, or the byte before it, belongs to a variable that this block has declared.
  bool is_declared(std::size_t offset, const SharedLayout& layout) const;

 private:
  std::string damage(const SharedLayout& layout) const;

  char* arena_;
  std::vector<char> declared_;  // by piece
  std::size_t used_ = 0;        // bytes from the start that may differ from red zone
};

}  // namespace palimpsest::cuda_emulator
