# One OpenMP runtime: libtorch's own libgomp.so.1, which the run path puts before the compiler's. FindOpenMP links the
# compiler's by its full path, of which CMake then warns that it is hidden; the flag alone says the same without a path.
if(OpenMP_CXX_FLAGS MATCHES "-fopenmp")
  set_target_properties(OpenMP::OpenMP_CXX PROPERTIES
    INTERFACE_LINK_LIBRARIES "" INTERFACE_LINK_OPTIONS "${OpenMP_CXX_FLAGS}")
endif()
