# Compiles every installed header by itself, as the first and only include of a unit. A unit whose header includes
# torch/nn/module.h or ATen/core/Tensor.h (by itself, or through headers of ours) gets that one precompiled: it would have
# compiled it first or later in any case, and 15 s per unit are spared. So a missing include of ours, or of another part of
# libtorch or std than that one, is an error here.
# The units with libtorch are parsed only: they end with a static assertion that fails, at which the compiler stops
# (parse_header). Behind it, it would instantiate the templates that were used, most of them libtorch's, for 4 s per unit. So
# an error that only an instantiation shows is not found in them.
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
  if("ATen/core/Tensor.h" IN_LIST _all OR _all MATCHES "torch/nn")
    # The name is found only outside of every namespace and class of the header.
    set(_end "struct Parsed {};\nstatic_assert(sizeof(::Parsed) == 0, \"parsed to the end\");\n")
  endif()
  file(CONFIGURE OUTPUT ${_unit}.cpp CONTENT "#include <${_header}>\n${_end}")
  if(_all MATCHES "torch/nn/(module|cloneable|modules/[a-z/]+)\\.h")
    list(APPEND _units_module ${CMAKE_CURRENT_BINARY_DIR}/${_unit}.cpp)
  elseif("ATen/core/Tensor.h" IN_LIST _all)
    list(APPEND _units_tensor ${CMAKE_CURRENT_BINARY_DIR}/${_unit}.cpp)
  else()
    list(APPEND _units_plain ${CMAKE_CURRENT_BINARY_DIR}/${_unit}.cpp)
  endif()
endforeach()

foreach(_kind module tensor plain)
  add_library(headers_${_kind} OBJECT ${_units_${_kind}})
  target_link_libraries(headers_${_kind} PRIVATE palimpsest::palimpsest)
  target_compile_options(headers_${_kind} PRIVATE -O0 -Wall -Wextra -Wno-unused-parameter -Werror -Wfatal-errors)
endforeach()
set_target_properties(headers_module headers_tensor PROPERTIES CXX_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/parse_header)
target_precompile_headers(headers_module PRIVATE <torch/nn/module.h>)
target_precompile_headers(headers_tensor PRIVATE <ATen/core/Tensor.h>)
