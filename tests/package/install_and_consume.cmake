# Variables: BUILD, WORK, SOURCES, PROJECT, GENERATOR, COMPILER, PYTHON, TORCH, SOURCE (tests/package/CMakeLists.txt).

# Runs the command, which must succeed; its output is in `output`.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  message("${text}")
  if(NOT status EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${status}): ${command}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()

# configure(NAME SAYS [FAILS] [FROM FOLDER] ARGUMENT...): configures the outside project, or its copy in FOLDER, in
# WORK/NAME. It must succeed, or with FAILS fail, and say SAYS. Lines that CMake breaks count as one.
function(configure name says)
  cmake_parse_arguments(PARSE_ARGV 2 ARG "FAILS" "FROM" "")
  if(NOT ARG_FROM)
    set(ARG_FROM ${SOURCES}/consumer)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${ARG_FROM} -B ${WORK}/${name} -G ${GENERATOR}
    -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_BUILD_TYPE=Release ${ARG_UNPARSED_ARGUMENTS}
    RESULT_VARIABLE status OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " line "${text}")
  string(FIND "${line}" "${says}" found)
  if((status EQUAL 0) STREQUAL ARG_FAILS OR found EQUAL -1)
    message(FATAL_ERROR "${name}: expected '${says}' (fails: ${ARG_FAILS}), got status ${status} and\n${text}")
  endif()
  if(line MATCHES "scripts/bootstrap")
    message(FATAL_ERROR "${name}: a consumer has no scripts/bootstrap:\n${text}")
  endif()
endfunction()

unset(ENV{PALIMPSEST_PYTHON})
unset(ENV{CMAKE_PREFIX_PATH})
unset(ENV{CMAKE_BUILD_TYPE})
unset(ENV{PYTHONPATH})
file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${WORK}/prefix/bin/palimpsest --version)
run(${CMAKE_COMMAND} -E compare_files ${PROJECT}/LICENSE ${WORK}/prefix/share/licenses/palimpsest/LICENSE)
file(GLOB_RECURSE installed RELATIVE ${WORK}/prefix ${WORK}/prefix/*)
foreach(file IN LISTS installed)
  if(file MATCHES "palimpsest_cli|/palimpsest/cli/|include/palimpsest/[^/]+/[^/]+/")
    message(FATAL_ERROR "${file} is private, and installed")
  endif()
endforeach()

# The layout of a libtorch zip, which needs no Python.
cmake_path(NORMAL_PATH TORCH)
file(MAKE_DIRECTORY ${WORK}/libtorch)
foreach(folder include lib share)
  file(CREATE_LINK ${TORCH}/${folder} ${WORK}/libtorch/${folder} SYMBOLIC)
endforeach()

set(prefix -D CMAKE_PREFIX_PATH=${WORK}/prefix)
set(of_zip "libtorch of ${WORK}/libtorch")
configure(zip ${of_zip} -D "CMAKE_PREFIX_PATH=${WORK}/prefix;${WORK}/libtorch"
  -D CONSUMER_SOURCE=${SOURCE} -D CONSUMER_HEADERS=ON)
configure(root ${of_zip} ${prefix} -D Libtorch_ROOT=${WORK}/libtorch)
configure(torch_dir ${of_zip} ${prefix} -D Torch_DIR=${WORK}/libtorch/share/cmake/Torch)
configure(python "libtorch of ${PYTHON}" ${prefix} -D PALIMPSEST_PYTHON=${PYTHON})
configure(as_built "libtorch of ${PYTHON}" ${prefix})
configure(component "libtorch of ${PYTHON}" ${prefix} -D CONSUMER_COMPONENTS=nn -D CONSUMER_SOURCE=${SOURCE}
  -D CMAKE_DISABLE_FIND_PACKAGE_JPEG=ON -D CMAKE_DISABLE_FIND_PACKAGE_PNG=ON)
configure(no_component "palimpsest has no component 'tensors'; it has: base, kernels, ops, memory, amp, distributed, nn, models, io, data, train"
  FAILS ${prefix} -D CONSUMER_COMPONENTS=tensors)
configure(no_libtorch "put an unpacked libtorch on CMAKE_PREFIX_PATH or into Libtorch_ROOT" FAILS ${prefix}
  -D PALIMPSEST_PYTHON=/bin/false)
configure(optional "found: 0, modules: ''" ${prefix} -D CONSUMER_OPTIONAL=ON -D PALIMPSEST_PYTHON=/bin/false)
configure(not_libtorch "'${WORK}' is no libtorch" FAILS ${prefix} -D Libtorch_ROOT=${WORK})

# A .venv without torch, as a project has that does not use Python's torch.
file(COPY ${SOURCES}/consumer/CMakeLists.txt DESTINATION ${WORK}/other_venv_source)
file(WRITE ${WORK}/other_venv_source/.venv/bin/python "#!/bin/sh\nexit 1\n")
file(CHMOD ${WORK}/other_venv_source/.venv/bin/python PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
configure(other_venv "libtorch of ${PYTHON}" FROM ${WORK}/other_venv_source ${prefix})

# The Python of a configured project gets a later torch.
set(later ${WORK}/site/torch)
file(WRITE ${later}/__init__.py "")
file(WRITE ${later}/lib/libtorch_cpu.so "")
file(WRITE ${later}/include/torch/csrc/api/include/torch/version.h "")
file(WRITE ${later}/include/torch/headeronly/version.h
  "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 98\n#define TORCH_VERSION_PATCH 1\n")
set(ENV{PYTHONPATH} ${WORK}/site)
configure(as_built "found 2.98.1 in ${later}/lib" ${prefix})
unset(ENV{PYTHONPATH})
if(EXISTS ${TORCH}/lib/libtorch_cuda.so)
  # libtorch's own package config insists on nvcc then; this is what it leaves.
  configure(torch_first ${of_zip} ${prefix} -D TORCH_INSTALL_PREFIX=${WORK}/libtorch)
else()
  configure(torch_first ${of_zip} -D "CMAKE_PREFIX_PATH=${WORK}/prefix;${WORK}/libtorch" -D TORCH_FIRST=ON)
endif()
run(${CMAKE_COMMAND} -S ${SOURCES}/subdirectory -B ${WORK}/subdirectory -G ${GENERATOR} -D PALIMPSEST=${PROJECT}
  -D CMAKE_CXX_COMPILER=${COMPILER} -D PALIMPSEST_PYTHON=${PYTHON} -D CONSUMER_SOURCE=${SOURCE})

run(${CMAKE_COMMAND} --build ${WORK}/zip)
run(${WORK}/zip/consumer)
