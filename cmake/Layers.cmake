# One folder = one layer = one target. scripts/check_layers checks that the includes say the same.

# All sources of a layer, and up to 12 of a test, are compiled as one unit: libtorch's headers, even precompiled, take 5
# to 10 s per unit, because their templates are instantiated at the end of every unit. So a name in an anonymous
# namespace must be unique within its outer namespace in a layer, and within a test program. OFF: each source is a unit,
# which takes less time after a change of one file, and checks that each source includes what it uses.
option(PALIMPSEST_UNITY "Compile several sources as one unit" ON)

function(palimpsest_unity target)
  # Relocatable (CMake 4): a unit that names its sources by absolute paths misses the compiler cache in every clone. The
  # relative paths begin at the top-level project, which is on the include path only if it is this project.
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PALIMPSEST_UNITY} UNITY_BUILD_BATCH_SIZE 0
    UNITY_BUILD_RELOCATABLE ${PROJECT_IS_TOP_LEVEL})
  if(PALIMPSEST_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++ gives this warning for an included source, as all sources of the unit are, and not for a separate source.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# Optimization takes a third of a unit's time, and does not make code faster that only calls libtorch.
function(palimpsest_calls_only target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# palimpsest_layer(NAME [SHARED] [PROGRAM] [TORCH_PCH] [UNITY] [CALLS_ONLY] SOURCES ... [PUBLIC targets...] [PRIVATE
# targets...]) Makes the target palimpsest_NAME (palimpsest::NAME), whose headers are included as
# "palimpsest/NAME/....h". PROGRAM: a part of the program, which is not installed.
function(palimpsest_layer name)
  cmake_parse_arguments(ARG "SHARED;PROGRAM;TORCH_PCH;UNITY;CALLS_ONLY" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  set(_target palimpsest_${name})
  if(ARG_SHARED)
    add_library(${_target} SHARED ${ARG_SOURCES})
  else()
    add_library(${_target} STATIC ${ARG_SOURCES})
  endif()
  add_library(palimpsest::${name} ALIAS ${_target})
  set_target_properties(${_target} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(${_target} PUBLIC cxx_std_20)
  target_include_directories(${_target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${_target} PUBLIC ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  if(ARG_TORCH_PCH)
    palimpsest_torch_pch(${_target})
  endif()
  if(ARG_UNITY)
    palimpsest_unity(${_target})
  endif()
  if(ARG_CALLS_ONLY)
    palimpsest_calls_only(${_target})
  endif()
  if(NOT ARG_PROGRAM)
    install(TARGETS ${_target} EXPORT palimpsestTargets)
    set_property(GLOBAL APPEND PROPERTY PALIMPSEST_INSTALLED_LAYERS ${name})
  endif()
endfunction()

# palimpsest_test(NAME [TORCH_PCH] [UNITY] [CHECKED] SOURCES ... LIBRARIES ... [PREPARE preparation...]): a GoogleTest
# program tests_NAME. CHECKED: AddressSanitizer checks the test's own sources as well. PREPARE: the sources of
# tests/support that prepare the process (tests/support/main.h).
function(palimpsest_test name)
  cmake_parse_arguments(ARG "TORCH_PCH;UNITY;CHECKED" "" "SOURCES;LIBRARIES;PREPARE" ${ARGN})
  list(TRANSFORM ARG_PREPARE REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/tests/support/\\1.cpp")
  add_executable(tests_${name} ${ARG_SOURCES} ${ARG_PREPARE})
  target_include_directories(tests_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(tests_${name} PRIVATE ${ARG_LIBRARIES} tests_main)
  palimpsest_calls_only(tests_${name})
  if(PALIMPSEST_SANITIZE MATCHES "address" AND NOT ARG_CHECKED)
    # The code that the tests call is checked, in buffers from a checked heap. The tests themselves are not: they then
    # take half of the time to compile. (A thread sanitizer must see every access to know which thread waited.)
    target_compile_options(tests_${name} PRIVATE -fno-sanitize=all)
  endif()
  if(ARG_TORCH_PCH)
    palimpsest_torch_pch(tests_${name})
  endif()
  if(ARG_UNITY)
    palimpsest_unity(tests_${name})
    if(NOT PALIMPSEST_SANITIZE)
      set_target_properties(tests_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE 12)
    endif()
  endif()
  # One CTest entry per program: loading libtorch takes a second, so one process per test case would cost minutes.
  add_test(NAME ${name} COMMAND tests_${name})
  set_tests_properties(${name} PROPERTIES WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} TIMEOUT 1500)
endfunction()

# palimpsest_pytest(NAME FILE...): Python tests of the built program or of the operator library.
function(palimpsest_pytest name)
  add_test(NAME ${name} COMMAND ${Libtorch_PYTHON} -m pytest -q -p no:cacheprovider ${ARGN})
  set_tests_properties(${name} PROPERTIES
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} TIMEOUT 1800
    ENVIRONMENT "PALIMPSEST_BUILD_DIR=${PROJECT_BINARY_DIR};PYTHONFAULTHANDLER=1")  # a crash at exit names its threads
endfunction()

# palimpsest_compiling_pytest(NAME FILE...): Python tests that compile units, by the shell command in PALIMPSEST_COMPILE.
function(palimpsest_compiling_pytest name)
  palimpsest_pytest(${name} ${ARGN})
  list(TRANSFORM Libtorch_INCLUDE_DIRS REPLACE "(.+)" "-isystem '\\1'" OUTPUT_VARIABLE _includes)
  list(JOIN _includes " " _includes)
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT
    "PALIMPSEST_COMPILE='${CMAKE_CXX_COMPILER}' -std=c++20 -fsyntax-only -I'${PROJECT_SOURCE_DIR}' ${_includes}")
endfunction()
