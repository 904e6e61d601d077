#pragma once

#include "tests/support/local_group.h"

#include <string>
#include <vector>

namespace palimpsest::testing {

/// A process group without other processes: each of its ranks has what this one has.
class MirrorGroup : public LocalGroup {
 public:
  explicit MirrorGroup(int size)
      : LocalGroup("mirror_of_" + std::to_string(size), c10::make_intrusive<MirrorBackend>(0, size)) {}

 private:
  class MirrorBackend : public LocalBackend {
   public:
    using LocalBackend::LocalBackend;

   private:
    std::vector<at::Tensor> exchange(const at::Tensor& mine) override {
      return std::vector<at::Tensor>(static_cast<std::size_t>(getSize()), mine.clone());
    }
  };
};

}  // namespace palimpsest::testing
