# palimpsest::fmt, for the layers that format text: the fmt whose headers libtorch brings, compiled once. Inline in
# every unit (FMT_HEADER_ONLY), its functions took a third of the time to compile a unit.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/fmt.cpp" CONTENT [[
// fmt's functions that are no templates, and the templates that its headers declare extern.
#include <fmt/format-inl.h>

namespace fmt::detail {

template thousands_sep_result<char> thousands_sep_impl<char>(locale_ref);
template thousands_sep_result<wchar_t> thousands_sep_impl<wchar_t>(locale_ref);
template char decimal_point_impl(locale_ref);
template wchar_t decimal_point_impl(locale_ref);

}  // namespace fmt::detail
]])
add_library(palimpsest_fmt STATIC "${PROJECT_BINARY_DIR}/fmt.cpp")
add_library(palimpsest::fmt ALIAS palimpsest_fmt)
set_target_properties(palimpsest_fmt PROPERTIES EXPORT_NAME fmt)
palimpsest_calls_only(palimpsest_fmt)
# Only libtorch's headers are needed.
target_include_directories(palimpsest_fmt SYSTEM PRIVATE ${Libtorch_INCLUDE_DIRS})
install(TARGETS palimpsest_fmt EXPORT palimpsestTargets)
