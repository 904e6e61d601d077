# Compiles every installed header by itself, as the first and only include of a unit. A unit whose header includes
# torch/nn/module.h or ATen/core/Tensor.h (by itself, or through headers of ours) gets that one precompiled: it would have
# compiled it first or later in any case, and 15 s per unit are spared. So a missing include of ours, or of another part of
# libtorch or std than that one, is an error here.
# The units with torch/nn are parsed only: each ends with a static assertion that fails, and there the compiler stops
# (parse_header). Behind it the compiler would instantiate templates, most of them libtorch's, for 4 s per unit. So these
# units do not show an error that only an instantiation shows.
get_target_property(_include palimpsest::base INTERFACE_INCLUDE_DIRECTORIES)
file(GLOB_RECURSE _headers RELATIVE ${_include} ${_include}/palimpsest/*.h)

# All that `header` includes: direct or through headers of ours.
function(included_by header result)
  set(_open ${header})
  set(_all "")
  while(_open)
    list(POP_FRONT _open _next)
    if(NOT EXISTS ${_include}/${_next})
      message(FATAL_ERROR "${header} needs ${_next}, which is not installed")
    endif()
    file(STRINGS ${_include}/${_next} _lines REGEX "^#include")
    foreach(_line IN LISTS _lines)
      string(REGEX REPLACE "^#include *[<\"]([^>\"]+)[>\"].*" "\\1" _name "${_line}")
      if(NOT _name IN_LIST _all)
        list(APPEND _all ${_name})
        if(_name MATCHES "^palimpsest/")
          list(APPEND _open ${_name})
        endif()
      endif()
    endforeach()
  endwhile()
  set(${result} "${_all}" PARENT_SCOPE)
endfunction()

set(_units_module "")
set(_units_tensor "")
set(_units_plain "")
foreach(_header IN LISTS _headers)
  string(MAKE_C_IDENTIFIER ${_header} _unit)
  set(_end "")
  included_by(${_header} _all)
  if(_all MATCHES "torch/nn/(module|cloneable|modules/[a-z/]+)\\.h")
    list(APPEND _units_module ${CMAKE_CURRENT_BINARY_DIR}/${_unit}.cpp)
    # ::Parsed is found only if the header has closed all of its namespaces and classes.
    set(_end "struct Parsed {};\nstatic_assert(sizeof(::Parsed) == 0, \"parsed to the end\");\n")
  elseif("ATen/core/Tensor.h" IN_LIST _all)
    list(APPEND _units_tensor ${CMAKE_CURRENT_BINARY_DIR}/${_unit}.cpp)
  else()
    list(APPEND _units_plain ${CMAKE_CURRENT_BINARY_DIR}/${_unit}.cpp)
  endif()
  file(CONFIGURE OUTPUT ${_unit}.cpp CONTENT "#include <${_header}>\n${_end}")
endforeach()

foreach(_kind module tensor plain)
  add_library(headers_${_kind} OBJECT ${_units_${_kind}})
  target_link_libraries(headers_${_kind} PRIVATE palimpsest::palimpsest)
  target_compile_options(headers_${_kind} PRIVATE -O0 -Wall -Wextra -Wno-unused-parameter -Werror -Wfatal-errors)
endforeach()
set_target_properties(headers_module PROPERTIES CXX_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/parse_header)
target_precompile_headers(headers_module PRIVATE <torch/nn/module.h>)
target_precompile_headers(headers_tensor PRIVATE <ATen/core/Tensor.h>)
