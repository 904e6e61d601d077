# Enables the CUDA language if PALIMPSEST_CUDA is set: nvcc 12.8 or later from the path, a toolkit's usual folder, or
# the Python packages that the torch wheel brings or PyPI has (nvidia-cuda-nvcc). nvcc never compiles libtorch's
# headers, so its version may differ from libtorch's.
if(NOT CMAKE_CUDA_COMPILER)
  file(GLOB _wheels "${Libtorch_LIBRARY_DIR}/../../nvidia/*/bin")
  find_program(PALIMPSEST_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin
    PATHS /usr/local/cuda/bin ${_wheels})
  if(NOT PALIMPSEST_NVCC)
    message(FATAL_ERROR "PALIMPSEST_CUDA needs nvcc 12.8 or later: install a CUDA toolkit, 'pip install nvidia-cuda-nvcc', "
      "or set CMAKE_CUDA_COMPILER")
  endif()
  set(CMAKE_CUDA_COMPILER "${PALIMPSEST_NVCC}")
endif()

set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
if(NOT CMAKE_CUDA_ARCHITECTURES)
  # Turing to Blackwell, and PTX for later GPUs. The kernels need nothing that Hopper lacks, so one PTX is enough for
  # Hopper and all later GPUs, and Ampere's for Ada: most of a compilation is the way to PTX.
  set(CMAKE_CUDA_ARCHITECTURES OFF CACHE STRING "GPU architectures; 'native': the one in this machine; OFF: 75 to 120")
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_75,code=sm_75>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_80,code=[sm_80,sm_86,sm_89]>"
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_90,code=[sm_90,sm_100,sm_120,compute_90]>")
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "PALIMPSEST_CUDA needs nvcc 12.8 or later: ${CMAKE_CUDA_COMPILER} is ${CMAKE_CUDA_COMPILER_VERSION}")
endif()

# One runtime in a process. Two would each have a current device and flags of their own, and libtorch's guards set only
# libtorch's. The operator library takes CUDA's functions from the runtime that libtorch_cpu loads, wherever that lies on
# the machine it runs on: so it names no file of its own. Another major version is another interface: then the library
# contains its own runtime, as CMake links it by default.
set(_major "")
foreach(_directory IN LISTS Libtorch_NVIDIA_DIRS Libtorch_LIBRARY_DIR)
  file(GLOB _runtimes "${_directory}/libcudart*.so.*")
  foreach(_runtime IN LISTS _runtimes)
    if(_runtime MATCHES "\\.so\\.([0-9]+)")
      set(_major "${CMAKE_MATCH_1}")
    endif()
  endforeach()
endforeach()
if(CMAKE_CUDA_COMPILER_VERSION MATCHES "^${_major}\\." AND _major)
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  set(PALIMPSEST_CUDA_RUNTIME libtorch CACHE INTERNAL "Whose CUDA runtime the operators call: libtorch's or their own")
else()
  message(WARNING "nvcc is ${CMAKE_CUDA_COMPILER_VERSION} and libtorch's CUDA runtime is version '${_major}': the operator "
    "library gets a second runtime, which libtorch's choice of a device does not reach. Take the nvcc of the same major version")
  set(PALIMPSEST_CUDA_RUNTIME own CACHE INTERNAL "Whose CUDA runtime the operators call: libtorch's or their own")
endif()
