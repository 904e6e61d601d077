#include "palimpsest/amp/buffer_keeper.h"

namespace palimpsest::amp {

BufferKeeper::BufferKeeper(const torch::nn::Module& model) {
  for (const auto& buffer : model.buffers())
    if (buffer.defined()) buffers_.emplace_back(buffer, buffer.detach().clone());
}

void BufferKeeper::save() const {
  for (const auto& [buffer, values] : buffers_) values.copy_(buffer);
}

void BufferKeeper::restore() const {
  for (const auto& [buffer, values] : buffers_) buffer.copy_(values);
}

}  // namespace palimpsest::amp
