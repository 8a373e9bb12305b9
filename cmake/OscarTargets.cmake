# oscar_library(name [TORCH] [QUICK] [GPU folder] SOURCES ... DEPS ...): one static library for each folder of lib/.
# A DEP must be there already: rooms of lib/ are added from the ground up, so nothing links what stands above it.
# TORCH: uses LibTorch and shares one precompiled header of it.
# QUICK: reads, writes and reports, and leaves arithmetic to others: compiled at -O1, in two thirds of the time. Results are the same
# bits at any level, since no option lets the compiler reorder sums or contract products.
# GPU: also the sources in `cuda` below this folder or, in a build without CUDA, those in `no_cuda`: the same functions.
function(oscar_library name)
  cmake_parse_arguments(A "TORCH;QUICK" "GPU" "SOURCES;DEPS" ${ARGN})
  if(A_GPU)
    set(_kind no_cuda)
    if(OSCAR_WITH_CUDA)
      set(_kind cuda)
      list(APPEND A_DEPS oscar::kernels CUDA::cudart c10_cuda ${CMAKE_DL_LIBS})
    endif()
    file(GLOB _sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${A_GPU}/${_kind}/*.cpp)
    list(APPEND A_SOURCES ${_sources})
  endif()
  foreach(_dep ${A_DEPS})
    if(_dep MATCHES "^oscar::" AND NOT TARGET ${_dep})
      message(FATAL_ERROR "${name} links ${_dep}, which stands above it in lib/CMakeLists.txt or does not exist")
    endif()
  endforeach()
  add_library(${name} STATIC ${A_SOURCES})
  string(REPLACE "oscar_" "oscar::" _alias ${name})
  add_library(${_alias} ALIAS ${name})
  target_link_libraries(${name} PUBLIC oscar::options ${A_DEPS})
  if(A_TORCH)
    oscar_use_torch(${name})
  endif()
  if(A_QUICK)
    oscar_compile_quickly(${name})
  endif()
endfunction()

# GCC sees less of an std::optional at -O1 and takes what is inside for uninitialized, so this one warning is off.
function(oscar_compile_quickly name)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-maybe-uninitialized>)
  endif()
endfunction()

# oscar_compile_alone(file ...): sources of this folder that stay out of the unity build, because a name of theirs stands in
# another file of their target as well, with another meaning.
function(oscar_compile_alone)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

set(OSCAR_TORCH_PCH oscar_torch_pch)  # folders of other flags have another (oscar_is_cold())
function(oscar_use_torch name)
  target_link_libraries(${name} PUBLIC oscar::torch)
  set(_pch ${OSCAR_TORCH_PCH})
  if(NOT TARGET ${_pch})
    file(WRITE ${CMAKE_BINARY_DIR}/${_pch}.cpp "// carrier of the precompiled header\n")
    add_library(${_pch} STATIC ${CMAKE_BINARY_DIR}/${_pch}.cpp)
    target_link_libraries(${_pch} PUBLIC oscar::options oscar::torch)
    target_precompile_headers(${_pch} PRIVATE <ATen/ATen.h> <nlohmann/json.hpp> <string> <vector> <memory>)
    # No two precompiled headers are equal byte by byte. ccache takes a checksum beside one for its contents, so that what
    # GCC compiled in one clone or folder is found again from every other, and what Clang compiled in the same one.
    file(SHA256 ${OSCAR_TORCH_DIR}/include/torch/headeronly/version.h _torch)
    string(SHA256 _checksum "${_torch} ${nlohmann_json_VERSION} ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_BUILD_TYPE} ${_pch}")
    foreach(_suffix gch pch)
      file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/${_pch}.dir/cmake_pch.hxx.${_suffix}.sum ${_checksum})
    endforeach()
  endif()
  target_precompile_headers(${name} REUSE_FROM ${_pch})
endfunction()

# oscar_app(oscar-name main.cpp DEPS ...): an executable in build/bin.
function(oscar_app name source)
  cmake_parse_arguments(A "TORCH" "" "DEPS" ${ARGN})
  add_executable(${name} ${source})
  set_target_properties(${name} PROPERTIES OSCAR_LOADS_CUDA_LATER ON)
  target_link_libraries(${name} PRIVATE oscar::options ${A_DEPS})
  oscar_compile_quickly(${name})
  oscar_set_sanitizer_options(${name})
  if(A_TORCH)
    oscar_use_torch(${name})
    oscar_shorten_openmp_spin(${name})
  endif()
endfunction()

# The options of the sanitizers, in the programs of a sanitizer build.
function(oscar_set_sanitizer_options name)
  if(OSCAR_SANITIZE)
    target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/lib/base/sanitizer_options.cpp)
    set_source_files_properties(${CMAKE_SOURCE_DIR}/lib/base/sanitizer_options.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# The reason stands in the file. Not in a sanitizer build: the function runs before the sanitizers are initialized.
function(oscar_shorten_openmp_spin name)
  if(OSCAR_SANITIZE)
    return()
  endif()
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/lib/base/openmp_spin.cpp)
  set_source_files_properties(${CMAKE_SOURCE_DIR}/lib/base/openmp_spin.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# oscar_test(name [TORCH] SOURCES ... DEPS ...): a GoogleTest executable, one entry of CTest. One process runs all cases:
# starting LibTorch takes a second of CPU time, longer than most of them, and minutes under the sanitizers.
# tests/count_tests.py counts the cases.
function(oscar_test name)
  cmake_parse_arguments(A "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${name} ${A_SOURCES})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${name} PRIVATE oscar::options ${A_DEPS} GTest::gmock GTest::gtest_main)
  oscar_set_sanitizer_options(${name})
  if(A_TORCH)
    oscar_use_torch(${name})
    oscar_shorten_openmp_spin(${name})
  endif()
  oscar_add_gtest(${name})
endfunction()

# Cases that the sanitizers' build leaves out: they compare distributions, work or bytes of long runs by code that shorter cases run
# there, too, and took a third of the time of their programs.
set(OSCAR_LONG_CASES
  DecoderPaths.PrefillAndDecodeAgreeForEveryMethod
  Runner.OutliersBreakTheUnrotatedCodeMost
  Runner.NeedlesAreFoundByBothPaths
  Runner.PagesCheckedBesideThePassesGiveTheSame
  WriteText.TokensFollowTheModelsOwnDistribution
  WriteText.ARunThatStoppedWritesTheSameRows
  HostileTokenizer.WorkIsBounded
  Collect.HeldStatesResumeBitForBit)

# Entries of CTest that take minutes start first (COST), so that no core waits for the last of them.
function(oscar_add_gtest name)
  set(_filter)
  if(OSCAR_SANITIZE)
    list(JOIN OSCAR_LONG_CASES ":" _filter)
    set(_filter "--gtest_filter=-${_filter}")
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1 ${_filter})
  set(_cost 20)
  if(name MATCHES "^(attention|verify|generate|collect)_test$")
    set(_cost 60)  # the longest of them
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT 1200 COST ${_cost})
  if(OSCAR_SANITIZE)
    # Threads are for the release build, where programs take a third less CPU time without; the count of spins is that of openmp_spin.cpp.
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "OMP_NUM_THREADS=1;GOMP_SPINCOUNT=1000")
  endif()
endfunction()
