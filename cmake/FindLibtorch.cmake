# Finds libtorch: the one inside a Python installation's torch package, or an unpacked libtorch (a folder with include/,
# lib/ and share/cmake/Torch), which needs no Python. The first of these that is given counts:
#   1. the libtorch that find_package(Torch) found before, or that Libtorch_ROOT or Torch_DIR names
#   2. PALIMPSEST_PYTHON: a Python interpreter that has torch
#   3. an unpacked libtorch on CMAKE_PREFIX_PATH
#   4. the first Python with torch of: the project's .venv, Libtorch_DEFAULT_PYTHON, python3
# Libtorch_ROOT, PALIMPSEST_PYTHON and CMAKE_PREFIX_PATH are CMake variables or else environment variables.
# No CUDA toolkit is needed: libtorch's own package config insists on nvcc, which a CPU build has no use for.
#
# Defines: Libtorch::cpu      torch_cpu and c10, with include paths and a run path
#          Libtorch::cuda     torch_cuda, which makes libtorch find a GPU; if this libtorch has it
#          Libtorch_VERSION, Libtorch_INCLUDE_DIRS, Libtorch_LIBRARY_DIR
#          Libtorch_ORIGIN    the folder or the Python by which it was found
#          Libtorch_PYTHON    the Python of 2, or of 4: the one that was found, else the first that exists
# Every configuration looks again: another torch may have come to the same place.

# Sets whether `folder` is an unpacked libtorch (or the torch folder of a Python installation, which looks the same).
function(_libtorch_is_root folder result)
  set(${result} FALSE PARENT_SCOPE)
  if(EXISTS "${folder}/lib/libtorch_cpu.so" AND EXISTS "${folder}/include/torch/csrc/api/include/torch/version.h")
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

# Sets what this module defines for an unpacked libtorch `root`, whose libraries are in the folder `libraries`.
function(_libtorch_use_root root libraries origin)
  set(_text "")
  foreach(_header headeronly/version.h csrc/api/include/torch/version.h)  # an old libtorch has the version in the second
    if(EXISTS "${root}/include/torch/${_header}")
      file(READ "${root}/include/torch/${_header}" _content)
      string(APPEND _text "${_content}")
    endif()
  endforeach()
  set(_version "")
  foreach(_part MAJOR MINOR PATCH)
    string(REGEX MATCH "define TORCH_VERSION_${_part} ([0-9]+)" _line "${_text}")
    list(APPEND _version "${CMAKE_MATCH_1}")
  endforeach()
  list(JOIN _version . _version)
  set(Libtorch_VERSION "${_version}" CACHE INTERNAL "")
  set(Libtorch_INCLUDE_DIRS "${root}/include;${root}/include/torch/csrc/api/include" CACHE INTERNAL "")
  set(Libtorch_LIBRARY_DIR "${libraries}" CACHE INTERNAL "")
  # The CUDA wheel's libtorch_cpu loads libcudart and libcupti, which lie beside torch.
  cmake_path(SET _site NORMALIZE "${libraries}/../..")
  file(GLOB _nvidia "${_site}nvidia/*/lib")
  set(Libtorch_NVIDIA_DIRS "${_nvidia}" CACHE INTERNAL "")
  set(Libtorch_ORIGIN "${origin}" CACHE INTERNAL "")
endfunction()

# 1. and 3.
set(_given "")
if(TORCH_INSTALL_PREFIX)
  list(APPEND _given "${TORCH_INSTALL_PREFIX}")
endif()
if(Libtorch_ROOT)
  list(APPEND _given "${Libtorch_ROOT}")
elseif(DEFINED ENV{Libtorch_ROOT})
  list(APPEND _given "$ENV{Libtorch_ROOT}")
endif()
if(Torch_DIR)
  cmake_path(SET _root NORMALIZE "${Torch_DIR}/../../..")
  list(APPEND _given "${_root}")
endif()
if(NOT _given AND NOT PALIMPSEST_PYTHON AND NOT DEFINED ENV{PALIMPSEST_PYTHON})
  string(REPLACE ":" ";" _prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(_prefix IN LISTS CMAKE_PREFIX_PATH _prefixes)
    _libtorch_is_root("${_prefix}" _is_root)
    if(_is_root)
      list(APPEND _given "${_prefix}")
      break()
    endif()
  endforeach()
endif()

# 2. and 4.
if(PALIMPSEST_PYTHON)
  set(_pythons "${PALIMPSEST_PYTHON}")
elseif(NOT "$ENV{PALIMPSEST_PYTHON}" STREQUAL "")
  set(_pythons "$ENV{PALIMPSEST_PYTHON}")
else()
  set(_pythons "")
  foreach(_python IN ITEMS "${CMAKE_SOURCE_DIR}/.venv/bin/python" "${Libtorch_DEFAULT_PYTHON}")
    if(EXISTS "${_python}")
      list(APPEND _pythons "${_python}")
    endif()
  endforeach()
  list(APPEND _pythons python3)
endif()
list(GET _pythons 0 Libtorch_PYTHON)
if(NOT Libtorch_WAY_OUT)
  set(Libtorch_WAY_OUT "run scripts/bootstrap, or set PALIMPSEST_PYTHON to a Python that has torch, or Libtorch_ROOT to an unpacked libtorch")
endif()

unset(Libtorch_LIBRARY_DIR CACHE)
unset(Libtorch_ORIGIN CACHE)
set(Libtorch_FAILURE "")
if(_given)
  list(GET _given 0 _root)
  cmake_path(NORMAL_PATH _root)
  string(REGEX REPLACE "/$" "" _root "${_root}")
  _libtorch_is_root("${_root}" _is_root)
  if(_is_root)
    # Without symbolic links: in a Python installation, CUDA's libraries lie beside torch.
    file(REAL_PATH "${_root}/lib" _libraries)
    _libtorch_use_root("${_root}" "${_libraries}" "${_root}")
  else()
    set(Libtorch_FAILURE "'${_root}' is no libtorch, which has lib/libtorch_cpu.so and include/torch (${Libtorch_WAY_OUT})")
  endif()
else()
  foreach(_python IN LISTS _pythons)
    # To import torch would take 2 s.
    execute_process(
      COMMAND "${_python}" -c "import os, importlib.util; print(os.path.dirname(importlib.util.find_spec('torch').origin))"
      OUTPUT_VARIABLE _root ERROR_QUIET RESULT_VARIABLE _status OUTPUT_STRIP_TRAILING_WHITESPACE)
    _libtorch_is_root("${_root}" _is_root)
    if(_status EQUAL 0 AND _is_root)
      set(Libtorch_PYTHON "${_python}")
      _libtorch_use_root("${_root}" "${_root}/lib" "${_python}")
      break()
    endif()
  endforeach()
  if(NOT Libtorch_ORIGIN)
    list(JOIN _pythons "', '" _pythons)
    set(Libtorch_FAILURE "no torch package in '${_pythons}' (${Libtorch_WAY_OUT})")
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch
  REQUIRED_VARS Libtorch_LIBRARY_DIR Libtorch_INCLUDE_DIRS VERSION_VAR Libtorch_VERSION
  REASON_FAILURE_MESSAGE "${Libtorch_FAILURE}")

if(Libtorch_FOUND AND NOT TARGET Libtorch::cpu)
  add_library(Libtorch::cpu INTERFACE IMPORTED)
  set(_link_options -Wl,-rpath,${Libtorch_LIBRARY_DIR})
  foreach(_directory IN LISTS Libtorch_NVIDIA_DIRS)
    list(APPEND _link_options -Wl,-rpath-link,${_directory})
  endforeach()
  set_target_properties(Libtorch::cpu PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIRS}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${Libtorch_INCLUDE_DIRS}"
    INTERFACE_LINK_OPTIONS "${_link_options}"
    # Registration of operators happens in static initializers: a linker that drops "unused" libraries drops them.
    INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed;${Libtorch_LIBRARY_DIR}/libtorch_cpu.so;${Libtorch_LIBRARY_DIR}/libc10.so;-Wl,--pop-state")
endif()

if(Libtorch_FOUND AND EXISTS "${Libtorch_LIBRARY_DIR}/libtorch_cuda.so" AND NOT TARGET Libtorch::cuda)
  add_library(Libtorch::cuda INTERFACE IMPORTED)
  set_target_properties(Libtorch::cuda PROPERTIES INTERFACE_LINK_LIBRARIES
    "-Wl,--push-state,--no-as-needed;${Libtorch_LIBRARY_DIR}/libtorch_cuda.so;${Libtorch_LIBRARY_DIR}/libc10_cuda.so;-Wl,--pop-state;Libtorch::cpu")
endif()
