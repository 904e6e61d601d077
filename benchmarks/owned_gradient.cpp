// torch.ops.palimpsest_benchmark.owned_gradient(z, dz): owned_gradient.h for the benchmarks in Python. No
// Python function can make a gradient with a single owner, because the Python object around a tensor is an
// owner too.
#include "benchmarks/owned_gradient.h"

#include <torch/library.h>

namespace {

at::Tensor owned_gradient(const at::Tensor& z, const at::Tensor& dz) {
  // Another tensor over dz's memory: it is the only owner as soon as Python has dropped dz.
  return palimpsest::benchmarks::OwnedGradient::apply(z, dz.detach());
}

}  // namespace

TORCH_LIBRARY(palimpsest_benchmark, m) {
  m.def("owned_gradient(Tensor z, Tensor dz) -> Tensor", owned_gradient);
}
