// The sweeps of one instruction set over f32 storage. Nothing of std:: may be used here: an inline function
// of std:: would become a weak symbol with instructions that older machines lack, and the linker might pick
// that copy for all. The test kernels_symbols checks it.
#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"
#include "palimpsest/kernels/cpu/abn/strip.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {

extern const Kernels<float> kF32 = {
    {plane_moments<float>, apply<float, true>, reduce<float, true>, backward<float, true>},
    {strip_moments<float>, strip_apply<float>, strip_reduce<float>, strip_backward<float>},
    {columns_moments<float>, columns_apply<float>, columns_reduce<float>, columns_backward<float>}};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
