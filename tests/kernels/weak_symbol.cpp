// What no unit of an instruction set may hold: an inline function that is left in the object, where the
// linker merges it with those of the same name. CTest compiles this for the check that looks for such
// symbols, and runs none of it.

#ifdef PALIMPSEST_WEAK_IN_shared
namespace palimpsest::kernels {
inline int inline_function() {
  return 1;
}
}  // namespace palimpsest::kernels
#endif

namespace palimpsest::kernels::cpu::weak_set {

#ifdef PALIMPSEST_WEAK_IN_own
inline int inline_function() {
  return 1;
}
#endif

using Function = int (*)();
extern const Function kTable = &inline_function;

}  // namespace palimpsest::kernels::cpu::weak_set
