# Compiler settings every target shares, carried by the interface target oscar::options.
add_library(oscar_options INTERFACE)
add_library(oscar::options ALIAS oscar_options)
# GCC 12 reports -Wrestrict wrongly for "literal" + std::string (GCC bug 105651).
target_compile_options(oscar_options INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers>)
target_include_directories(oscar_options INTERFACE ${CMAKE_SOURCE_DIR}/lib ${CMAKE_SOURCE_DIR})

# Configuration of the preset asan: instrumented code at -O2 takes four times as long to compile as at -Og, and
# stack traces need line tables only.
set(CMAKE_CXX_FLAGS_SANITIZE "-Og -g1 -DNDEBUG")
set(CMAKE_C_FLAGS_SANITIZE "-Og -g1 -DNDEBUG")

# oscar_is_cold(name): of this folder and those below, whose code is not where tests spend their time. With sanitizers it is compiled
# in half the time without any optimization. name: of the folders with the same flags, which share a precompiled header.
macro(oscar_is_cold name)
  if(OSCAR_SANITIZE)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-O0>)
    set(OSCAR_TORCH_PCH oscar_${name}_torch_pch)
  endif()
endmacro()

if(OSCAR_SANITIZE)
  set(_san -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_compile_options(oscar_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${_san} -D_GLIBCXX_ASSERTIONS>)
  target_link_options(oscar_options INTERFACE ${_san})
endif()

# Hardening, in one place: SECURITY.md promises it and tests/apps/test_executables.py looks at the executables. Sanitizers
# bring checks of their own, which fortified calls would hide from them.
if(NOT OSCAR_SANITIZE)
  target_compile_options(oscar_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fPIE -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>)
  target_link_options(oscar_options INTERFACE -pie -Wl,-z,relro,-z,now,-z,noexecstack)
endif()

if(OSCAR_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "OSCAR_FUZZ needs Clang for libFuzzer: use --preset asan, or -DCMAKE_CXX_COMPILER=clang++.")
  endif()
endif()

find_program(OSCAR_CCACHE ccache)
if(OSCAR_CCACHE)
  set(_launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 CCACHE_PCH_EXTSUM=1 ${OSCAR_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${_launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${_launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${_launcher})
endif()
find_program(OSCAR_MOLD mold)
if(OSCAR_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
