#include "tests/support/cuda_emulator/emulator.h"

#include <cstdlib>
#include <map>
#include <utility>
#include <vector>

// Captures and device memory. Tests call these functions from one thread, except for new_device_memory.
namespace palimpsest::cuda_emulator {
namespace {

std::map<const void*, uint64_t> captures;  // of streams that record
std::map<uint64_t, std::vector<std::pair<void (*)(void*), void*>>> ends;
uint64_t last_capture = 0;
int64_t allocation_count = 0;

}  // namespace

Capture::Capture(const void* stream) : stream_(stream), id_(++last_capture) {
  captures[stream_] = id_;
}

Capture::~Capture() {
  captures.erase(stream_);
}

void Capture::destroy_graph() {
  captures.erase(stream_);
  for (const auto& [function, argument] : std::exchange(ends[id_], {})) function(argument);
}

uint64_t capture_of(const void* stream) {
  const auto found = captures.find(stream);
  return found == captures.end() ? 0 : found->second;
}

bool call_with_graph_end(const void* stream, void (*function)(void*), void* argument) {
  const uint64_t id = capture_of(stream);
  if (id != 0) ends[id].emplace_back(function, argument);
  return id != 0;
}

int64_t device_allocations() {
  return __atomic_load_n(&allocation_count, __ATOMIC_RELAXED);
}

void* new_device_memory(std::size_t bytes) {
  if (!settings().has_device_memory) return nullptr;
  __atomic_fetch_add(&allocation_count, 1, __ATOMIC_RELAXED);
  return std::calloc(bytes, 1);
}

}  // namespace palimpsest::cuda_emulator
