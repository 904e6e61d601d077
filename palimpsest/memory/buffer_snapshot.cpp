#include "palimpsest/memory/buffer_snapshot.h"

#include <ATen/ATen.h>

namespace palimpsest::memory {

BufferSnapshot::BufferSnapshot(const std::vector<at::Tensor>& buffers) {
  for (const auto& buffer : buffers) {
    if (buffer.defined()) buffers_.push_back({buffer, buffer.detach().clone()});
  }
}

void BufferSnapshot::save() {
  for (const auto& [buffer, values] : buffers_) values.copy_(buffer.detach());
}

void BufferSnapshot::restore() const {
  // variable_data() has its own version counter, and autograd does not record detached values.
  for (const auto& [buffer, values] : buffers_) buffer.variable_data().copy_(values);
}

}  // namespace palimpsest::memory
