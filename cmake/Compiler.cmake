# Language standard, warnings, sanitizers and compiler cache, which every target of the project shares.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)  # the static layers go into the operator library, too
# Programs too are compiled with -fPIC, not -fPIE: a precompiled header works only for units with the same setting, and
# without it a test file takes 16 s, not 5 s.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE ${CMAKE_CXX_COMPILE_OPTIONS_PIC})
set(CMAKE_CXX_VISIBILITY_PRESET default)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without the sloppiness and -fpch-preprocess, ccache refuses every unit that uses a precompiled header. EXTSUM names
  # the text that stands for the header (palimpsest_torch_pch).
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()

add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-unused-parameter;-Wno-restrict>")  # g++ 12 sees false overlaps in "literal" + std::string

if(PALIMPSEST_SANITIZE)
  # -O1 and line tables: -O2 -g would give the same findings and traces, and take twice the time to compile.
  add_compile_options(-O1 -g1 -fsanitize=${PALIMPSEST_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${PALIMPSEST_SANITIZE})
  if(PALIMPSEST_SANITIZE MATCHES "thread")
    # libgomp is not instrumented, so every OpenMP region would read as a race (base/parallel.h).
    add_compile_definitions(PALIMPSEST_PARALLEL_STD_THREAD=1)
  endif()
  if(PALIMPSEST_SANITIZE MATCHES "address")
    # AddressSanitizer checks every pointer that is used. With these options libtorch's headers would take a fifth
    # longer to compile.
    add_compile_options(-fno-sanitize=null,object-size,vptr,pointer-overflow)
    add_compile_definitions(PALIMPSEST_ADDRESS_SANITIZER=1)
  endif()
endif()
