#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

namespace palimpsest::train {

/// Numbers of a step on their way from the device to the host. A GPU computes them when the host has long
/// gone on: the constructor begins the copy to pinned memory behind the work that is queued, and waits for
/// nothing.
class LateNumbers {
 public:
  /// `scalars`: of one device, at least one. They are read as f64.
  explicit LateNumbers(const std::vector<at::Tensor>& scalars);
  /// Returns the numbers. The host waits until they are there: not at all if the device has got that far.
  std::vector<double> read() const;

 private:
  at::Tensor on_host_;
  std::optional<c10::Event> arrived_;  // not on the CPU
};

}  // namespace palimpsest::train
