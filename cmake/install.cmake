include(CMakePackageConfigHelpers)

set(heddle_package_dir ${CMAKE_INSTALL_DATADIR}/cmake/heddle)

install(TARGETS heddle EXPORT heddle-targets FILE_SET HEADERS)
install(EXPORT heddle-targets NAMESPACE heddle:: DESTINATION ${heddle_package_dir})

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/heddle-config.cmake.in heddle-config.cmake INSTALL_DESTINATION ${heddle_package_dir})
write_basic_package_version_file(heddle-config-version.cmake COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES ${PROJECT_BINARY_DIR}/heddle-config.cmake ${PROJECT_BINARY_DIR}/heddle-config-version.cmake
        DESTINATION ${heddle_package_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
