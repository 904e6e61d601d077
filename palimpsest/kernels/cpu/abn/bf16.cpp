// The sweeps of one instruction set over bf16 storage. Nothing of std:: may be used here: an inline function
// of std:: would become a weak symbol with instructions that older machines lack, and the linker might pick
// that copy for all. The test kernels_symbols checks it.
#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"
#include "palimpsest/kernels/cpu/abn/strip.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {

extern const Kernels<BFloat16> kBF16 = {
    {plane_moments<BFloat16>, apply<BFloat16, true>, reduce<BFloat16, true>, backward<BFloat16, true>},
    {strip_moments<BFloat16>, strip_apply<BFloat16>, strip_reduce<BFloat16>, strip_backward<BFloat16>},
    {columns_moments<BFloat16>, columns_apply<BFloat16>, columns_reduce<BFloat16>,
     columns_backward<BFloat16>}};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
