// Time of the kernels of stored weights on one matrix: median of 20, L2 flushed before each, one JSON object a line.
// "bytes" are those that must be read and written once, "copy" is a copy from device to device that moves as many.
//   dequantize_weights_bench [--rows N] [--columns N]     default 4096 x 14336, to BF16
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/weights/column_codes.h"
#include "kernels/weights/row_codes.h"
#include "tests/bench/time_graph.h"

namespace oscar::kernels {
namespace {

constexpr int kRepeat = 20;
constexpr std::size_t kFlushBytes = std::size_t{256} << 20;

struct Bench {
  int rows, columns;
  std::size_t elements = static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  DeviceArray<std::uint8_t> flush{kFlushBytes}, codes{elements}, scales{4 * elements / 16 + 4096}, zeros{elements};
  DeviceArray<std::uint16_t> weight{elements};
  std::string gpu;

  // Bits that are finite scales in every type.
  void fill() {
    check_cuda(cudaMemset(codes.get(), 0x35, elements), "cudaMemset");
    check_cuda(cudaMemset(scales.get(), 0x35, 4 * elements / 16 + 4096), "cudaMemset");
    check_cuda(cudaMemset(zeros.get(), 0x35, elements), "cudaMemset");
  }

  template <class Launch>
  void time(const char* format, double code_bytes, double scale_bytes, Launch&& launch) {
    check_cuda(launch(nullptr), format);
    check_cuda(cudaDeviceSynchronize(), format);
    const double bytes = code_bytes + scale_bytes + 2.0 * static_cast<double>(elements);
    const double us = time_graph(launch, kRepeat, flush, kFlushBytes);
    const auto half = static_cast<std::size_t>(bytes / 2);
    DeviceArray<std::uint8_t> from(half), to(half);
    const double copy = time_graph(
        [&](cudaStream_t stream) {
          return cudaMemcpyAsync(to.get(), from.get(), half, cudaMemcpyDeviceToDevice, stream);
        },
        kRepeat, flush, kFlushBytes);
    std::printf(
        "{\"gpu\": \"%s\", \"format\": \"%s\", \"rows\": %d, \"columns\": %d, \"bytes\": %.0f, \"us\": %.1f, \"GB_s\": "
        "%.0f, \"copy_us\": %.1f, \"copy_GB_s\": %.0f, \"of_copy\": %.3f}\n",
        gpu.c_str(), format, rows, columns, bytes, us, bytes / us * 1e-3, copy, bytes / copy * 1e-3, copy / us);
    std::fflush(stdout);
  }

  void row_codes(const char* format, RowCode code, ScaleType type, int block_rows, int block_columns, bool has_zeros) {
    const bool four = code == RowCode::kE2M1 || code == RowCode::kUnsigned4;
    RowCodesParams p;
    p.codes = codes.get(), p.scale = scales.get(), p.weight = weight.get();
    p.zeros = has_zeros ? reinterpret_cast<const std::int32_t*>(zeros.get()) : nullptr;
    p.row_bytes = four ? columns / 2 : columns;
    p.rows = rows, p.columns = columns;
    p.block_rows = block_rows, p.block_columns = block_columns;
    p.column_groups = (columns + block_columns - 1) / block_columns;
    p.code = code, p.scale_type = type;
    if (type == ScaleType::kE4M3) p.second = SecondScale::kMultiplies, p.second_scale = 0.5f;
    const double count = static_cast<double>((rows + block_rows - 1) / block_rows) * p.column_groups;
    const double width = type == ScaleType::kFloat32 ? 4 : type == ScaleType::kBFloat16 ? 2 : 1;
    time(format, static_cast<double>(p.row_bytes) * rows, count * (width + (has_zeros ? (four ? 0.5 : 1.0) : 0.0)),
         [&](cudaStream_t stream) { return dequantize_row_codes(p, stream); });
  }

  void column_codes(const char* format, ColumnCode code, int group) {
    const double width = code == ColumnCode::kGptq8 ? 1.0 : 0.5;
    ColumnCodesParams p;
    p.codes = reinterpret_cast<const std::uint32_t*>(codes.get());
    p.zeros = reinterpret_cast<const std::uint32_t*>(zeros.get());
    p.scale = scales.get(), p.weight = weight.get();
    p.rows = rows, p.columns = columns, p.block_columns = group;
    p.zero_offset = code == ColumnCode::kAwq ? 0 : 1;
    p.code = code;
    const double groups = static_cast<double>((columns + group - 1) / group) * rows;
    time(format, width * static_cast<double>(elements), groups * (2 + width),
         [&](cudaStream_t stream) { return dequantize_column_codes(p, stream); });
  }
};

int run(int argc, char** argv) {
  int rows = 4096, columns = 14336, count = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--rows") == 0) rows = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--columns") == 0) columns = std::atoi(argv[i + 1]);
  }
  if (rows < 1 || columns < 128 || columns % 128 != 0) {
    std::fprintf(stderr, "usage: dequantize_weights_bench [--rows N] [--columns N]; columns are a multiple of 128\n");
    return 2;
  }
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::fprintf(stderr, "no GPU\n");
    return 4;
  }
  cudaDeviceProp gpu{};
  check_cuda(cudaGetDeviceProperties(&gpu, 0), "cudaGetDeviceProperties");
  Bench bench{rows, columns};
  bench.gpu = gpu.name;
  bench.fill();
  bench.row_codes("FP8 128x128", RowCode::kE4M3, ScaleType::kFloat32, 128, 128, false);
  bench.row_codes("FP8 rows", RowCode::kE4M3, ScaleType::kBFloat16, 1, columns, false);
  bench.row_codes("FP8 tensor", RowCode::kE4M3, ScaleType::kFloat32, rows, columns, false);
  bench.row_codes("INT8 rows", RowCode::kInteger8, ScaleType::kFloat32, 1, columns, false);
  bench.row_codes("MXFP4", RowCode::kE2M1, ScaleType::kE8M0, 1, 32, false);
  bench.row_codes("NVFP4", RowCode::kE2M1, ScaleType::kE4M3, 1, 16, false);
  bench.row_codes("packed INT4, groups of 128", RowCode::kUnsigned4, ScaleType::kBFloat16, 1, 128, false);
  bench.row_codes("packed INT4, zero points", RowCode::kUnsigned4, ScaleType::kBFloat16, 1, 128, true);
  bench.row_codes("packed INT8, rows", RowCode::kUnsigned8, ScaleType::kBFloat16, 1, columns, false);
  bench.column_codes("AWQ, groups of 128", ColumnCode::kAwq, 128);
  bench.column_codes("GPTQ 4 bits, groups of 128", ColumnCode::kGptq4, 128);
  bench.column_codes("GPTQ 8 bits, groups of 128", ColumnCode::kGptq8, 128);
  return 0;
}

}  // namespace
}  // namespace oscar::kernels

int main(int argc, char** argv) {
  try {
    return oscar::kernels::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
