// A unit of one instruction set must not hold this: an inline function that is left in the object, where the
// linker merges it with others of the same name. This unit proves the check for such symbols; it never runs.

#ifdef PALIMPSEST_WEAK_IN_shared
namespace palimpsest::kernels {
inline int inline_function() {
  return 1;
}
}  // namespace palimpsest::kernels
#endif

namespace palimpsest::kernels::cpu::some_set::weak {

#ifdef PALIMPSEST_WEAK_IN_own
inline int inline_function() {
  return 1;
}
#endif

using Function = int (*)();
extern const Function kTable = &inline_function;

}  // namespace palimpsest::kernels::cpu::some_set::weak
