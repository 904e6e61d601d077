#include "palimpsest/ops/exponent_counts.h"

#include "palimpsest/kernels/exponent_histogram.h"
#include "palimpsest/ops/common/dtype.h"
#include "palimpsest/ops/exponent_counts/device_cuda.h"

#include <c10/util/Exception.h>

namespace palimpsest::ops {

ExponentCounts exponent_counts(const at::Tensor& t) {
  TORCH_CHECK(
      t.scalar_type() == at::kFloat || t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16,
      "[exponent_counts] values must be f32, f16 or bf16, got ", t.scalar_type());
  at::Tensor values = t.is_cuda() ? t.detach() : t.detach().cpu();
  if (!values.is_non_overlapping_and_dense()) values = values.contiguous();  // any order serves
  kernels::ExponentHistogram counts{};
  if (values.is_cuda())
    counts = exponent_counts_cuda(values);
  else
    kernels::cpu::exponent_histogram(dtype_of("exponent_counts", values), values.const_data_ptr(),
                                     values.numel(), counts);
  return {counts[kernels::kZeroBin],
          counts[kernels::kInfinityBin],
          counts[kernels::kNaNBin],
          {counts.begin() + kernels::bin_of_exponent(kLowestExponent),
           counts.begin() + kernels::bin_of_exponent(kHighestExponent) + 1}};
}

}  // namespace palimpsest::ops
