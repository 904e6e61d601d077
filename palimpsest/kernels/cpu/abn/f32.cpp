// The sweeps of one instruction set over f32 storage. Nothing here may come from std:: (an inline function of
// it would become a weak symbol full of instructions that older machines lack, and the linker might pick that
// copy for everyone). tests/kernels looks at the symbols.
#include "palimpsest/kernels/cpu/abn/apply.h"
#include "palimpsest/kernels/cpu/abn/gradient.h"
#include "palimpsest/kernels/cpu/abn/moments.h"
#include "palimpsest/kernels/cpu/abn/strip.h"

namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE {

extern const AbnKernels<float> kAbnF32 = {
    {plane_moments<float>, apply<float, true>, reduce<float, true>, backward<float, true>},
    {strip_moments<float>, strip_apply<float>, strip_reduce<float>, strip_backward<float>},
    {columns_moments<float>, apply<float, false>, reduce<float, false>, backward<float, false>}};

}  // namespace palimpsest::kernels::cpu::PALIMPSEST_ISA_NAMESPACE
