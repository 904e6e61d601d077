# One OpenMP runtime: libtorch's own libgomp.so.1, which the run path puts before the compiler's. FindOpenMP links the
# compiler's libgomp by its full path, and CMake then warns that libtorch's hides it; the flag alone links without a
# path.
if(OpenMP_CXX_FLAGS MATCHES "-fopenmp")
  set_target_properties(OpenMP::OpenMP_CXX PROPERTIES
    INTERFACE_LINK_LIBRARIES "" INTERFACE_LINK_OPTIONS "${OpenMP_CXX_FLAGS}")
endif()
