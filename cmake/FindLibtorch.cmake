# Finds the libtorch inside a Python installation's torch package. Needs no CUDA toolkit: the CUDA wheel's own
# package config insists on nvcc, which a CPU build has no use for, so the paths are asked of Python instead.
#
# Reads:   PALIMPSEST_PYTHON (CMake variable, else environment, else the project's .venv, else python3)
# Defines: Libtorch::cpu      torch_cpu and c10, with include paths and a run path
#          Libtorch::cuda     torch_cuda, which makes libtorch find a GPU; where the torch package has it
#          Libtorch_VERSION, Libtorch_PYTHON, Libtorch_LIBRARY_DIR
if(NOT PALIMPSEST_PYTHON)
  if(DEFINED ENV{PALIMPSEST_PYTHON})
    set(PALIMPSEST_PYTHON "$ENV{PALIMPSEST_PYTHON}")
  elseif(EXISTS "${CMAKE_SOURCE_DIR}/.venv/bin/python")
    set(PALIMPSEST_PYTHON "${CMAKE_SOURCE_DIR}/.venv/bin/python")
  else()
    set(PALIMPSEST_PYTHON python3)
  endif()
endif()
set(PALIMPSEST_PYTHON "${PALIMPSEST_PYTHON}" CACHE STRING "Python interpreter whose torch package is used")
set(Libtorch_PYTHON "${PALIMPSEST_PYTHON}")

# The key lets a change of interpreter, and nothing else, ask again: importing torch takes 2 s.
if(NOT Libtorch_ASKED STREQUAL Libtorch_PYTHON)
  execute_process(
    COMMAND "${Libtorch_PYTHON}" -c "
import os, torch
from torch.utils.cpp_extension import include_paths, library_paths
print(torch.__version__.split('+')[0])
print(':'.join(include_paths()))
print(library_paths()[0])
print(os.path.dirname(os.path.dirname(torch.__file__)))"
    OUTPUT_VARIABLE _answer ERROR_VARIABLE _complaint RESULT_VARIABLE _status OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(_status EQUAL 0)
    string(REPLACE "\n" ";" _answer "${_answer}")
    list(GET _answer 0 _version)
    list(GET _answer 1 _includes)
    list(GET _answer 2 _libraries)
    list(GET _answer 3 _site)
    string(REPLACE ":" ";" _includes "${_includes}")
    # The CUDA wheel's libtorch_cpu loads libcudart and libcupti, which lie beside torch.
    file(GLOB _nvidia "${_site}/nvidia/*/lib")
    set(Libtorch_VERSION "${_version}" CACHE INTERNAL "")
    set(Libtorch_INCLUDE_DIRS "${_includes}" CACHE INTERNAL "")
    set(Libtorch_LIBRARY_DIR "${_libraries}" CACHE INTERNAL "")
    set(Libtorch_NVIDIA_DIRS "${_nvidia}" CACHE INTERNAL "")
    set(Libtorch_ASKED "${Libtorch_PYTHON}" CACHE INTERNAL "")
  else()
    set(Libtorch_FAILURE "'${Libtorch_PYTHON}' has no torch package (run scripts/bootstrap, or set PALIMPSEST_PYTHON to a Python that has one): ${_complaint}")
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
