# CUDA language and kernel libraries. Kernels never see LibTorch (raw pointers only).
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)

if(OSCAR_CUDA_ARCHITECTURES STREQUAL "release")
  set(OSCAR_CUDA_ARCHITECTURES "80-real;86-real;89-real;90a-real;100-real;120-real;90-virtual")
endif()

option(OSCAR_LINEINFO "Line numbers in the kernels, for profilers: a fifth more time to compile and three times the size" OFF)

# oscar_kernel_library(name SOURCES ... DEPS ...)
function(oscar_kernel_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${A_SOURCES})
  string(REPLACE "oscar_" "oscar::" _alias ${name})
  add_library(${_alias} ALIAS ${name})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${OSCAR_CUDA_ARCHITECTURES}" POSITION_INDEPENDENT_CODE ON
    UNITY_BUILD OFF)  # the device code of a kernel takes longer than its headers
  target_compile_options(${name} PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Werror>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${OSCAR_LINEINFO}>>:-lineinfo>)
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC CUDA::cudart ${A_DEPS})
endfunction()
