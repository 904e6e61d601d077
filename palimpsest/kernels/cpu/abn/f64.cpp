// The sweeps of one instruction set over f64 storage. Nothing here may come from std:: (an inline function of
// it would become a weak symbol full of instructions that older machines lack, and the linker might pick that
// copy for everyone). tests/kernels looks at the symbols.
#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"
#include "palimpsest/kernels/cpu/abn/strip.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {

extern const AbnKernels<double> kAbnF64 = {
    {plane_moments<double>, apply<double, true>, reduce<double, true>, backward<double, true>},
    {strip_moments<double>, strip_apply<double>, strip_reduce<double>, strip_backward<double>},
    {columns_moments<double>, apply<double, false>, reduce<double, false>, backward<double, false>}};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
