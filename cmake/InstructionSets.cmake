# palimpsest_per_instruction_set(TARGET SOURCE... [BF16 SOURCE...]): compiles each source once per instruction set into
# TARGET. The copy that runs is chosen at the first use (palimpsest/kernels/cpu/dispatch.h). Each copy sees
#   PALIMPSEST_ISA_NAMESPACE   the namespace that separates its symbols from the other copies'
#   PALIMPSEST_VECTOR_BYTES    the width of the set's vector registers
# The set x86-64-v4-bf16 is x86-64-v4, but for the sources after BF16, which also use the instructions that round to bf16.
# TARGET's other sources can include "compiled_sets.h", whose PALIMPSEST_FOR_EACH_SET(SET) is
#   SET(namespace, namespace of the sources after BF16, "name", "level", "feature")
# for every compiled set, best first: __builtin_cpu_supports must be true of level and feature.
# Debug builds optimize these sources too: at -O0 a call of a vector lane's arithmetic costs 50 times the arithmetic.
# There is no -ffast-math: NaN and infinity must reach the results.
set(PALIMPSEST_KERNEL_FLAGS -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math)
if(PALIMPSEST_SANITIZE)
  # A sanitizer gets less optimization: with its checks each of these units takes minutes at -O3.
  list(TRANSFORM PALIMPSEST_KERNEL_FLAGS REPLACE -O3 -O1)
endif()
if(PALIMPSEST_SANITIZE MATCHES "address")
  # Checks of memory are calls, not inline code: half of the time to compile.
  list(APPEND PALIMPSEST_KERNEL_FLAGS --param=asan-instrumentation-with-call-threshold=0)
endif()

# All sets have the same source, and differ in the width of a vector and in a few instructions: the presets of the sanitizers
# check one set.
set(PALIMPSEST_INSTRUCTION_SETS "" CACHE STRING
  "On x86-64, compile the CPU kernels for these instruction sets only, e.g. x86-64-v3; native: for the best one that this \
processor has; empty: for all")

# Sets `result` to the best instruction set of this processor, but for x86-64-v4-bf16, which comes with x86-64-v4.
function(_palimpsest_native_set result)
  try_run(_status _compiled SOURCE_FROM_CONTENT native_set.cpp [[
    #include <cstdio>
    int main() {
      const bool v4 = __builtin_cpu_supports("x86-64-v4"), v3 = __builtin_cpu_supports("x86-64-v3");
      std::printf("%s", v4 ? "x86-64-v4" : v3 ? "x86-64-v3" : "x86-64-v2");
    }]] RUN_OUTPUT_VARIABLE _native)
  if(NOT _compiled OR NOT _status EQUAL 0)
    message(FATAL_ERROR "PALIMPSEST_INSTRUCTION_SETS=native: no program can be compiled and run here; name a set")
  endif()
  set(${result} ${_native} PARENT_SCOPE)
endfunction()

function(palimpsest_per_instruction_set target)
  cmake_parse_arguments(PARSE_ARGV 1 _arg "" "" BF16)
  set(_sources ${_arg_UNPARSED_ARGUMENTS} ${_arg_BF16})
  set(_for_each "")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(_wanted ${PALIMPSEST_INSTRUCTION_SETS})
    if("native" IN_LIST _wanted)
      _palimpsest_native_set(_native)
      list(TRANSFORM _wanted REPLACE "^native$" ${_native})
    endif()
    # Without the preference, gcc splits 512-bit vectors of its own into two halves.
    set(_v4 -march=x86-64-v4 -mprefer-vector-width=512)
    _palimpsest_bf16_set(${target} "${_v4}" ${_arg_BF16})
    _palimpsest_instruction_set(${target} x86-64-v4 64 "${_v4}" ${_sources})
    _palimpsest_instruction_set(${target} x86-64-v3 32 "-march=x86-64-v3" ${_sources})
    # This set is for processors before 2013: -O2 takes a third less time to compile than -O3.
    _palimpsest_instruction_set(${target} x86-64-v2 16 "-march=x86-64-v2;$<$<NOT:$<BOOL:${PALIMPSEST_SANITIZE}>>:-O2>" ${_sources})
    if(NOT _for_each)
      message(FATAL_ERROR "PALIMPSEST_INSTRUCTION_SETS must name x86-64-v2, x86-64-v3, x86-64-v4 or native, got "
        "'${PALIMPSEST_INSTRUCTION_SETS}'")
    endif()
  else()
    set(_wanted "")
    _palimpsest_instruction_set(${target} native 16 "" ${_sources})
  endif()
  file(CONFIGURE OUTPUT compiled_sets.h CONTENT "#define PALIMPSEST_FOR_EACH_SET(SET)${_for_each}\n")
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

function(_palimpsest_instruction_set target name bytes flags)
  if(_wanted AND NOT name IN_LIST _wanted)
    return()
  endif()
  string(REPLACE - _ _namespace ${name})
  _palimpsest_set_objects(${target} ${_namespace} ${bytes} "${flags}" ${ARGN})
  set(_for_each "${_for_each} SET(${_namespace}, ${_namespace}, \"${name}\", \"${name}\", \"${name}\")" PARENT_SCOPE)
endfunction()

# The set comes with x86-64-v4, of which it is a part.
function(_palimpsest_bf16_set target flags)
  if(NOT ARGN OR (_wanted AND NOT x86-64-v4 IN_LIST _wanted))
    return()
  endif()
  _palimpsest_set_objects(${target} x86_64_v4_bf16 64 "${flags};-mavx512bf16" ${ARGN})
  set(_for_each "${_for_each} SET(x86_64_v4, x86_64_v4_bf16, \"x86-64-v4-bf16\", \"x86-64-v4\", \"avx512bf16\")" PARENT_SCOPE)
endfunction()

function(_palimpsest_set_objects target namespace bytes flags)
  set(_objects ${target}_${namespace})
  add_library(${_objects} OBJECT ${ARGN})
  target_compile_features(${_objects} PRIVATE cxx_std_20)
  target_include_directories(${_objects} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${_objects} PRIVATE ${PALIMPSEST_KERNEL_FLAGS} ${flags})
  target_compile_definitions(${_objects} PRIVATE
    PALIMPSEST_ISA_NAMESPACE=${namespace} PALIMPSEST_VECTOR_BYTES=${bytes})
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:${_objects}>)
  set_property(TARGET ${target} APPEND PROPERTY PALIMPSEST_ISA_OBJECTS ${_objects})
endfunction()
