// The sweeps of one instruction set over f16 storage. Nothing of std:: may be used here: an inline function
// of std:: would become a weak symbol with instructions that older machines lack, and the linker might pick
// that copy for all. The test kernels_symbols checks it.
#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"
#include "palimpsest/kernels/cpu/abn/strip.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {

extern const Kernels<Float16> kF16 = {
    {plane_moments<Float16>, apply<Float16, true>, reduce<Float16, true>, backward<Float16, true>},
    {strip_moments<Float16>, strip_apply<Float16>, strip_reduce<Float16>, strip_backward<Float16>},
    {columns_moments<Float16>, columns_apply<Float16>, columns_reduce<Float16>, columns_backward<Float16>}};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
