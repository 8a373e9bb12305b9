# What `cmake --install` and CPack put where. docs/install.md tells users; apps/launcher.cpp finds LibTorch by these paths.
#   bin/oscar-*                      launchers
#   lib/oscar-toolchain/{cpu,cuda}/  the four commands of this build
#   lib/oscar-toolchain/*.so.*       libraries that they bring along
#   share/                           man pages, completion, schemas, licenses
include(GNUInstallDirs)
set(OSCAR_COMMANDS oscar-collect oscar-fit oscar-verify oscar-export)
set(OSCAR_LIBRARY_FOLDER lib/oscar-toolchain)  # the same on every system: launchers know it
set(OSCAR_DOC_FOLDER share/doc/oscar-toolchain)
option(OSCAR_BUNDLE_LIBRARIES "Install Oniguruma, utf8proc and OpenSSL's libcrypto, with licenses, beside the commands" ON)

set(OSCAR_BUILD_FOLDER ${OSCAR_LIBRARY_FOLDER}/cpu)
if(OSCAR_WITH_CUDA)
  set(OSCAR_BUILD_FOLDER ${OSCAR_LIBRARY_FOLDER}/cuda)
endif()
# Not install(TARGETS), for which CMake ends the RPATH of the build's own programs with a colon: an empty entry, by which the
# loader searches the folder that a command is started in.
configure_file(cmake/install_commands.cmake.in ${CMAKE_BINARY_DIR}/install_commands.cmake @ONLY)
install(SCRIPT ${CMAKE_BINARY_DIR}/install_commands.cmake)
foreach(_command ${OSCAR_COMMANDS})
  install(PROGRAMS $<TARGET_FILE:oscar_launcher> DESTINATION bin RENAME ${_command})
endforeach()

# Licenses of what is inside the executables, and of the libraries beside them.
# oscar_license(NAME file): the copyright text that the Debian package of `file` installed, or -DOSCAR_LICENSE_NAME=<text>.
function(oscar_license name file)
  if(NOT OSCAR_LICENSE_${name})
    execute_process(COMMAND dpkg-query -S ${file} OUTPUT_VARIABLE _owner ERROR_QUIET)
    string(REGEX MATCH "^[^:]+" _owner "${_owner}")
    if(_owner AND EXISTS /usr/share/doc/${_owner}/copyright)
      set(OSCAR_LICENSE_${name} /usr/share/doc/${_owner}/copyright CACHE FILEPATH "License of ${name}" FORCE)
    endif()
  endif()
  if(NOT OSCAR_LICENSE_${name})
    install(CODE "message(FATAL_ERROR \"The license of ${name} (${file}) was not found: configure with -DOSCAR_LICENSE_${name}=<file>.\")")
    return()
  endif()
  file(REAL_PATH ${OSCAR_LICENSE_${name}} _text)
  install(FILES ${_text} DESTINATION ${OSCAR_DOC_FOLDER}/licenses RENAME ${name})
endfunction()
find_path(OSCAR_CLI11_INCLUDE_DIR CLI/CLI.hpp)
find_path(OSCAR_JSON_INCLUDE_DIR nlohmann/json.hpp)
oscar_license(CLI11 ${OSCAR_CLI11_INCLUDE_DIR}/CLI/CLI.hpp)
oscar_license(nlohmann_json ${OSCAR_JSON_INCLUDE_DIR}/nlohmann/json.hpp)
if(OSCAR_BUNDLE_LIBRARIES)
  oscar_license(Oniguruma ${ONIGURUMA_LIBRARY})
  oscar_license(utf8proc ${UTF8PROC_LIBRARY})
  oscar_license(OpenSSL ${OPENSSL_CRYPTO_LIBRARY})
  if(EXISTS /usr/share/common-licenses/Apache-2.0)  # the text that OpenSSL's refers to
    install(FILES /usr/share/common-licenses/Apache-2.0 DESTINATION ${OSCAR_DOC_FOLDER}/licenses)
  endif()
endif()

# Man pages, from what the commands say with --help-all.
set(_manuals ${CMAKE_BINARY_DIR}/manuals)
set(_generated)
foreach(_command ${OSCAR_COMMANDS})
  list(APPEND _generated ${_manuals}/${_command}.1)
endforeach()
add_custom_command(OUTPUT ${_generated}
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/tools/make_manuals.py --output ${_manuals} --version ${PROJECT_VERSION}
          $<TARGET_FILE:oscar-collect> $<TARGET_FILE:oscar-fit> $<TARGET_FILE:oscar-verify> $<TARGET_FILE:oscar-export>
  DEPENDS ${OSCAR_COMMANDS} tools/make_manuals.py
  COMMENT "Man pages" VERBATIM)
add_custom_target(oscar_manuals ALL DEPENDS ${_generated})
install(DIRECTORY ${_manuals}/ DESTINATION share/man/man1 FILES_MATCHING PATTERN "*.1")
install(DIRECTORY schemas/ DESTINATION share/oscar-toolchain/schemas FILES_MATCHING PATTERN "*.json")
install(FILES LICENSE CHANGELOG.md docs/install.md DESTINATION ${OSCAR_DOC_FOLDER})

# CPack: .deb and .tar.gz of the same tree. The wheel is made of it by scripts/package.
execute_process(COMMAND getconf GNU_LIBC_VERSION OUTPUT_VARIABLE _glibc OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
string(REGEX MATCH "[0-9.]+$" _glibc "${_glibc}")
string(REGEX MATCH "^[0-9]+" _gcc "${CMAKE_CXX_COMPILER_VERSION}")
set(CPACK_GENERATOR "DEB;TGZ")
set(CPACK_PACKAGE_NAME oscar-toolchain)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "OSCAR toolchain maintainers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Calibrate, fit, evaluate and export a 2-bit key/value cache")
set(CPACK_PACKAGE_FILE_NAME oscar-toolchain-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGING_INSTALL_PREFIX /usr)
# The releases that this build was made with: newer than what its symbols ask for, never older. A clang build links GCC's
# libstdc++ of the same machine.
set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6 (>= ${_glibc}), libgcc-s1, zlib1g, libstdc++6")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS " (>= ${_gcc})")
endif()
include(CPack)
