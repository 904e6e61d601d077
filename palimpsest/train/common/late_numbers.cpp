#include "palimpsest/train/common/late_numbers.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace palimpsest::train {

LateNumbers::LateNumbers(const std::vector<at::Tensor>& scalars) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> wide;
  wide.reserve(scalars.size());
  for (const at::Tensor& scalar : scalars) wide.push_back(scalar.detach().to(at::kDouble));
  const at::Tensor numbers = at::stack(wide);
  if (numbers.is_cpu()) {
    on_host_ = numbers;
    return;
  }
  on_host_ = at::empty(numbers.sizes(), at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
  on_host_.copy_(numbers, /*non_blocking=*/true);
  const c10::Device device = numbers.device();
  arrived_.emplace(device.type());
  arrived_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

std::vector<double> LateNumbers::read() const {
  if (arrived_) arrived_->synchronize();
  const double* const values = on_host_.const_data_ptr<double>();
  return {values, values + on_host_.numel()};
}

}  // namespace palimpsest::train
