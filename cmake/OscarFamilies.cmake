# oscar_list_families(target folder): family_rows() of every row that a source of the folder defines, by the names of files and
# then in the order of a file. The list is generated when CMake runs; a new or changed source runs CMake again. So a model family is
# one file, which no list, header or table names.
function(oscar_list_families target folder)
  file(GLOB _sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_sources})
  set(_rows "")
  foreach(_source ${_sources})
    file(STRINGS ${_source} _lines REGEX "^extern const FamilyRow k[A-Za-z0-9_]+ = {")
    foreach(_line ${_lines})
      string(REGEX REPLACE "^extern const FamilyRow (k[A-Za-z0-9_]+).*" "\\1" _row "${_line}")
      list(APPEND _rows ${_row})
    endforeach()
  endforeach()
  if(NOT _rows)
    message(FATAL_ERROR "no source of ${folder} has a line \"extern const FamilyRow kName = {\"")
  endif()
  list(JOIN _rows ", " OSCAR_FAMILY_NAMES)
  list(TRANSFORM _rows PREPEND "&")
  list(JOIN _rows ", " OSCAR_FAMILY_POINTERS)
  set(_list ${CMAKE_CURRENT_BINARY_DIR}/${target}_families.cpp)
  file(CONFIGURE OUTPUT ${_list} @ONLY CONTENT [[#include "checkpoint/families/family.h"

namespace oscar {
extern const FamilyRow @OSCAR_FAMILY_NAMES@;

std::span<const FamilyRow* const> family_rows() {
  static const std::array rows = {@OSCAR_FAMILY_POINTERS@};
  return rows;
}
}  // namespace oscar
]])
  target_sources(${target} PRIVATE ${_sources} ${_list})
endfunction()
