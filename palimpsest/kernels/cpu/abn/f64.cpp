// The sweeps of one instruction set over f64 storage. Nothing of std:: may be used here: an inline function
// of std:: would become a weak symbol with instructions that older machines lack, and the linker might pick
// that copy for all. The test kernels_symbols checks it.
#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"
#include "palimpsest/kernels/cpu/abn/strip.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn {

extern const Kernels<double> kF64 = {
    {plane_moments<double>, apply<double, true>, reduce<double, true>, backward<double, true>},
    {strip_moments<double>, strip_apply<double>, strip_reduce<double>, strip_backward<double>},
    {columns_moments<double>, columns_apply<double>, columns_reduce<double>, columns_backward<double>}};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE::abn
