# `cmake --install` lays out headers, layers, program and operator library; find_package(palimpsest) finds them.
# A consumer links palimpsest::palimpsest (all of it) or one layer, e.g. palimpsest::memory (docs/library.md).
# tests/package checks this.
include(CMakePackageConfigHelpers)

# The layers that find_package offers: all that are installed but the halves of kernels.
get_property(_components GLOBAL PROPERTY PALIMPSEST_INSTALLED_LAYERS)
list(FILTER _components EXCLUDE REGEX "^kernels_")

add_library(palimpsest_all INTERFACE)
set_target_properties(palimpsest_all PROPERTIES EXPORT_NAME palimpsest)
add_library(palimpsest::palimpsest ALIAS palimpsest_all)
# Highest first: a static library precedes those that it needs.
list(TRANSFORM _components PREPEND palimpsest_ OUTPUT_VARIABLE _libraries)
list(REVERSE _libraries)
target_link_libraries(palimpsest_all INTERFACE ${_libraries})
install(TARGETS palimpsest_all EXPORT palimpsestTargets)

# The public headers are those directly in a layer's folder; private ones lie one folder down.
set(_patterns ${PROJECT_SOURCE_DIR}/palimpsest/*.h)
foreach(_layer IN LISTS _components)
  list(APPEND _patterns ${PROJECT_SOURCE_DIR}/palimpsest/${_layer}/*.h)
endforeach()
file(GLOB _headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${_patterns})
foreach(_header IN LISTS _headers)
  cmake_path(GET _header PARENT_PATH _folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${_header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${_folder})
endforeach()

# Its terms ask for a copy beside the binaries.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/licenses/palimpsest)

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/palimpsest)
install(EXPORT palimpsestTargets NAMESPACE palimpsest:: DESTINATION ${_package_dir})
list(JOIN _components " " PALIMPSEST_COMPONENTS)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/palimpsestConfig.cmake.in
  ${PROJECT_BINARY_DIR}/palimpsestConfig.cmake INSTALL_DESTINATION ${_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/palimpsestConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/palimpsestConfig.cmake ${PROJECT_BINARY_DIR}/palimpsestConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake ${PROJECT_SOURCE_DIR}/cmake/OneOpenMP.cmake
  DESTINATION ${_package_dir})
