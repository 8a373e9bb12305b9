# oscar_library(name [TORCH] SOURCES ... DEPS ...): one static library for each folder of lib/.
# TORCH: uses LibTorch and shares one precompiled header of it.
function(oscar_library name)
  cmake_parse_arguments(A "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  string(REPLACE "oscar_" "oscar::" _alias ${name})
  add_library(${_alias} ALIAS ${name})
  target_link_libraries(${name} PUBLIC oscar::options ${A_DEPS})
  if(A_TORCH)
    oscar_use_torch(${name})
  endif()
endfunction()

function(oscar_use_torch name)
  target_link_libraries(${name} PUBLIC oscar::torch)
  if(NOT TARGET oscar_torch_pch)
    file(WRITE ${CMAKE_BINARY_DIR}/oscar_torch_pch.cpp "// carrier of the precompiled header\n")
    add_library(oscar_torch_pch STATIC ${CMAKE_BINARY_DIR}/oscar_torch_pch.cpp)
    target_link_libraries(oscar_torch_pch PUBLIC oscar::options oscar::torch)
    target_precompile_headers(oscar_torch_pch PRIVATE <ATen/ATen.h> <string> <vector> <memory>)
  endif()
  target_precompile_headers(${name} REUSE_FROM oscar_torch_pch)
endfunction()

# oscar_app(oscar-name main.cpp DEPS ...): an executable in build/bin.
function(oscar_app name source)
  cmake_parse_arguments(A "TORCH" "" "DEPS" ${ARGN})
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE oscar::options ${A_DEPS})
  if(A_TORCH)
    oscar_use_torch(${name})
    oscar_shorten_openmp_spin(${name})
  endif()
endfunction()

# The reason stands in the file. Not in a sanitizer build: the function runs before the sanitizers are initialised.
function(oscar_shorten_openmp_spin name)
  if(OSCAR_SANITIZE)
    return()
  endif()
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/lib/base/openmp_spin.cpp)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/lib/base/openmp_spin.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# oscar_test(name [TORCH] SOURCES ... DEPS ...): a GoogleTest executable, its cases listed in CTest.
function(oscar_test name)
  cmake_parse_arguments(A "TORCH" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE oscar::options ${A_DEPS} GTest::gmock GTest::gtest_main)

  if(A_TORCH)
    oscar_use_torch(${name})
    oscar_shorten_openmp_spin(${name})
  endif()
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${A_TIMEOUT} ENVIRONMENT GOMP_SPINCOUNT=1000)  # for sanitizer builds; see openmp_spin.cpp
endfunction()
