// What the timing programs of attention kernels share: the shapes, and their results as text and JSON.
#pragma once

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace oscar::kernels {

struct AttentionShape {
  int batch = 0, context = 0, query_heads = 0, kv_heads = 0, head_dim = 128;

  // BATCHxCONTEXTxQ_HEADSxKV_HEADS, and HEAD_DIM where another than 128 is meant.
  bool parse(const std::string& text) {
    int four = 0, five = 0;  // characters read
    const int numbers = std::sscanf(text.c_str(), "%dx%dx%dx%d%nx%d%n", &batch, &context, &query_heads, &kv_heads,
                                    &four, &head_dim, &five);
    return numbers >= 4 && static_cast<std::size_t>(numbers == 5 ? five : four) == text.size();
  }
};

// The seven shapes of the benchmark table: 32 query heads, 8 KV heads.
inline std::vector<AttentionShape> published_shapes() {
  std::vector<AttentionShape> shapes;
  for (auto [b, n] : {std::pair{1, 8192}, {1, 32768}, {1, 131072}, {8, 8192}, {8, 32768}, {32, 8192}, {64, 32768}})
    shapes.push_back({b, n, 32, 8});
  return shapes;
}

struct Timing {
  double us, bytes;
};

// Prints each result and keeps it as a line of JSON.
class AttentionRows {
 public:
  explicit AttentionRows(std::string gpu) : gpu_(std::move(gpu)) {}

  // kind: what was timed, as pairs of name and value.
  void add(const AttentionShape& s, const std::vector<std::pair<std::string, std::string>>& kind,
           const Timing& timing) {
    const auto& [us, bytes] = timing;
    std::string text, json;
    for (const auto& [name, value] : kind) {
      text += value + std::string(value.size() < 9 ? 10 - value.size() : 1, ' ');
      json += "\"" + name + "\": \"" + value + "\", ";
    }
    std::printf("batch %3d context %6d heads %d/%d d %d %s: %8.1f us  %7.1f MB  %5.2f TB/s\n", s.batch, s.context,
                s.query_heads, s.kv_heads, s.head_dim, text.c_str(), us, bytes / 1e6, bytes / us / 1e6);
    char numbers[2][200];
    std::snprintf(numbers[0], sizeof numbers[0],
                  "\"batch\": %d, \"context\": %d, \"q_heads\": %d, \"kv_heads\": %d, \"head_dim\": %d, ", s.batch,
                  s.context, s.query_heads, s.kv_heads, s.head_dim);
    std::snprintf(numbers[1], sizeof numbers[1], "\"us\": %.1f, \"bytes\": %.0f}", us, bytes);
    rows_ += (rows_.empty() ? "" : ",\n") + ("  {\"gpu\": \"" + gpu_ + "\", ") + numbers[0] + json + numbers[1];
  }
  void write(const std::string& path) const { std::ofstream(path) << "[\n" << rows_ << "\n]\n"; }

 private:
  std::string gpu_, rows_;
};

// Runs a program; an exception becomes one line and exit code 4.
inline int run_program(int (*program)(int, char**), int argc, char** argv) {
  try {
    return program(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 4;
  }
}

}  // namespace oscar::kernels
