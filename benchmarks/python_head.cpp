// torch.ops.palimpsest_benchmark.hand_over(z, dz): benchmarks/hand_over.h for the benchmarks in Python, where
// no function can make a gradient that nobody else owns: the Python object around a tensor is an owner, too.
#include "benchmarks/hand_over.h"

#include <torch/library.h>

namespace {

at::Tensor hand_over(const at::Tensor& z, const at::Tensor& dz) {
  // Another tensor over dz's memory: once Python has dropped dz, this one alone owns it.
  return palimpsest::benchmarks::HandOver::apply(z, dz.detach());
}

}  // namespace

TORCH_LIBRARY(palimpsest_benchmark, m) {
  m.def("hand_over(Tensor z, Tensor dz) -> Tensor", hand_over);
}
