# A precompiled <torch/torch.h>, which every target that asks for it shares. It saves 10 s per unit.
# Half of all units wait for the header. So it is defined before the layers: among equals, Ninja begins with what was
# defined first.
if(NOT PALIMPSEST_SANITIZE)  # the header for two to four units, each a whole target, takes longer than it saves
  # A target needs a source. Nothing links this one, so it is only preprocessed: with the header, even an empty source
  # takes 5 s to compile.
  file(WRITE "${PROJECT_BINARY_DIR}/torch_pch.cpp" "// Holds the precompiled header of the other targets.\n")
  add_library(palimpsest_torch_pch OBJECT "${PROJECT_BINARY_DIR}/torch_pch.cpp")
  set_source_files_properties("${PROJECT_BINARY_DIR}/torch_pch.cpp" PROPERTIES COMPILE_OPTIONS "-E")
  target_link_libraries(palimpsest_torch_pch PRIVATE Libtorch::cpu OpenMP::OpenMP_CXX)
  target_precompile_headers(palimpsest_torch_pch PRIVATE <torch/torch.h>)
  # No two compilations give the same 700 MB. This text stands for them in the compiler cache (CCACHE_PCH_EXTSUM).
  find_file(_torch_version torch/version.h PATHS ${Libtorch_INCLUDE_DIRS} REQUIRED NO_CACHE NO_DEFAULT_PATH)
  file(SHA256 "${_torch_version}" _torch)
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/palimpsest_torch_pch.dir/cmake_pch.hxx.gch.sum"
    "${_torch} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE}\n")
endif()

function(palimpsest_torch_pch target)
  if(TARGET palimpsest_torch_pch)
    target_precompile_headers(${target} REUSE_FROM palimpsest_torch_pch)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # Below this size g++ collects no garbage, which takes it 4 % of a unit's time.
      target_compile_options(${target} PRIVATE --param=ggc-min-heapsize=1000000)
    endif()
  endif()
endfunction()
