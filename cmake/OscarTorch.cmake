# LibTorch from the PyPI wheel as the imported target oscar::torch.
# find_package(Torch) is not used: for a CUDA wheel it insists on a CUDA toolkit, which a CPU-only machine lacks,
# and it adds GPU flags to every CUDA target. The wheel needs just its include folder and two or three libraries.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
if(NOT OSCAR_TORCH_DIR)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c
      "import importlib.util as u; print(list(u.find_spec('torch').submodule_search_locations)[0])"
    OUTPUT_VARIABLE _torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _torch_rc ERROR_QUIET)
  if(NOT _torch_rc EQUAL 0)
    message(FATAL_ERROR "LibTorch was not found: ${Python3_EXECUTABLE} has no 'torch' package. Run scripts/setup, "
      "or pass -DPython3_EXECUTABLE=<python with torch 2.11> or -DOSCAR_TORCH_DIR=<folder with include/ and lib/>.")
  endif()
  set(OSCAR_TORCH_DIR ${_torch_dir} CACHE PATH "Folder of LibTorch: include/ and lib/" FORCE)
endif()
add_library(oscar_torch INTERFACE)
add_library(oscar::torch ALIAS oscar_torch)
target_include_directories(oscar_torch SYSTEM INTERFACE
  ${OSCAR_TORCH_DIR}/include ${OSCAR_TORCH_DIR}/include/torch/csrc/api/include)
target_link_directories(oscar_torch INTERFACE ${OSCAR_TORCH_DIR}/lib)
# libstdc++ comes first in the lookup order: LibTorch exports its own old copies of some std::filesystem functions,
# and remove_all of that copy jumps to a null pointer.
target_link_libraries(oscar_torch INTERFACE -Wl,--no-as-needed stdc++ -Wl,--as-needed torch_cpu c10)
if(OSCAR_WITH_CUDA)
  # libtorch.so pulls in libtorch_cuda.so and the gigabytes it loads; nothing in our code refers to it directly, so the
  # linker must be told to keep it. The four commands load it where a GPU is used (lib/pipeline/common/cuda/gpu_facts.cpp), so that they start
  # in half the time on the CPU; programs of tests find it loaded.
  target_link_libraries(oscar_torch INTERFACE
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:OSCAR_LOADS_CUDA_LATER>>>:-Wl,--no-as-needed,-ltorch,--as-needed>)
endif()
# For programs that run from the build folder; installed ones look elsewhere (OscarInstall.cmake).
target_link_options(oscar_torch INTERFACE -Wl,-rpath,${OSCAR_TORCH_DIR}/lib)

# 2.11: what the installed programs demand of the LibTorch that they find.
file(READ ${OSCAR_TORCH_DIR}/include/torch/headeronly/version.h _torch_version)
string(REGEX MATCH "TORCH_VERSION_MAJOR ([0-9]+)" _match "${_torch_version}")
set(OSCAR_TORCH_SERIES ${CMAKE_MATCH_1})
string(REGEX MATCH "TORCH_VERSION_MINOR ([0-9]+)" _match "${_torch_version}")
string(APPEND OSCAR_TORCH_SERIES .${CMAKE_MATCH_1})
