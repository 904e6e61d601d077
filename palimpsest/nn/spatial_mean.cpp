#include "palimpsest/nn/spatial_mean.h"

#include "palimpsest/ops/spatial_mean.h"

namespace palimpsest::nn {

at::Tensor spatial_mean(const at::Tensor& x) {
  return ops::spatial_mean(x);
}

}  // namespace palimpsest::nn
