#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "codec/codec.h"
#include "codec/row_math.h"
#include "methods/group_codes.h"
#include "methods/tile_codes.h"

namespace oscar {
namespace {

constexpr int kIterations = 16;
constexpr double kLeastDeviation = 1e-3, kMostDeviation = 1e3;  // of one division
constexpr double kLeastLog = -0.3, kMostLog = 10.0;             // of an accumulated logarithm

struct Scales {
  std::vector<double> log_row, log_column;
};

constexpr std::size_t kLanes = 8;
typedef double Lanes __attribute__((vector_size(kLanes * sizeof(double))));

struct RowSums {
  double sum, squares;
};

// Sums of one row of the tile divided by its scales, and what it adds to those of the columns. In lanes, so that no
// addition waits for the one before; all clones give the same bits.
OSCAR_VECTOR_CLONES RowSums add_row(const float* x, std::size_t columns, double scale, const double* by, double* sum,
                                    double* squares) {
  Lanes s = {}, q = {};
  std::size_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    Lanes v, factor, column, energy;
    for (std::size_t lane = 0; lane < kLanes; ++lane) v[lane] = static_cast<double>(x[c + lane]);
    std::memcpy(&factor, by + c, sizeof factor);
    std::memcpy(&column, sum + c, sizeof column);
    std::memcpy(&energy, squares + c, sizeof energy);
    v = v * scale * factor;
    s += v, q += v * v;
    column += v, energy += v * v;
    std::memcpy(sum + c, &column, sizeof column);
    std::memcpy(squares + c, &energy, sizeof energy);
  }
  for (; c < columns; ++c) {
    const double v = static_cast<double>(x[c]) * scale * by[c];
    s[0] += v, q[0] += v * v;
    sum[c] += v, squares[c] += v * v;
  }
  RowSums total{0, 0};
  for (std::size_t lane = 0; lane < kLanes; ++lane) total.sum += s[lane], total.squares += q[lane];
  return total;
}

// Deviations (n - 1 in the denominator) of rows and columns of the tile divided by the scales.
void deviations(const float* tile, std::size_t rows, std::size_t columns, const Scales& scales,
                std::vector<double>& row, std::vector<double>& column) {
  std::vector<double> sum(columns, 0.0), squares(columns, 0.0), by(columns);
  for (std::size_t c = 0; c < columns; ++c) by[c] = std::exp(-scales.log_column[c]);
  for (std::size_t r = 0; r < rows; ++r) {
    const RowSums total =
        add_row(tile + r * columns, columns, std::exp(-scales.log_row[r]), by.data(), sum.data(), squares.data());
    const auto n = static_cast<double>(columns);
    row[r] = std::sqrt(std::max(0.0, (total.squares - total.sum * total.sum / n) / (n - 1)));
  }
  const auto n = static_cast<double>(rows);
  for (std::size_t c = 0; c < columns; ++c) {
    column[c] = std::sqrt(std::max(0.0, (squares[c] - sum[c] * sum[c] / n) / (n - 1)));
  }
}

double spread(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *high / std::max(*low, 1e-12);
}

void accumulate(std::vector<double>& logs, const std::vector<double>& by) {
  for (std::size_t i = 0; i < logs.size(); ++i) {
    logs[i] = std::clamp(logs[i] + std::log(std::clamp(by[i], kLeastDeviation, kMostDeviation)), kLeastLog, kMostLog);
  }
}

Scales balance(const float* tile, std::size_t rows, std::size_t columns) {
  Scales now{std::vector<double>(rows, 0.0), std::vector<double>(columns, 0.0)}, best = now;
  std::vector<double> row(rows), column(columns);
  double least = INFINITY;
  for (int i = 0; i <= kIterations; ++i) {
    deviations(tile, rows, columns, now, row, column);
    const double imbalance = spread(row) + spread(column);
    if (imbalance < least) {
      least = imbalance;
      best = now;
    }
    if (i == kIterations) break;
    accumulate(now.log_column, column);
    deviations(tile, rows, columns, now, row, column);
    accumulate(now.log_row, row);
  }
  return best;
}

}  // namespace

void sinkhorn_code(float* tile, std::int64_t tokens, std::int64_t d, int bits, bool is_value) {
  const auto rows = static_cast<std::size_t>(tokens), columns = static_cast<std::size_t>(d);
  const Scales scales = balance(tile, rows, columns);
  std::vector<float> row(rows), column(columns), group;
  for (std::size_t r = 0; r < rows; ++r) row[r] = static_cast<float>(std::exp(scales.log_row[r]));
  for (std::size_t c = 0; c < columns; ++c) column[c] = static_cast<float>(std::exp(scales.log_column[c]));
  // The scale of the axis that shares a code range is absorbed in the range's own parameters; the other one is stored.
  std::vector<float>& stored = is_value ? column : row;
  for (float& s : stored) s = group_codes::stored_half(s);
  if (is_value) {
    group.resize(columns);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) group[c] = tile[r * columns + c] / column[c];
      group_codes::uniform(group.data(), d, bits);
      for (std::size_t c = 0; c < columns; ++c) tile[r * columns + c] = group[c] * column[c];
    }
    return;
  }
  group.resize(rows);
  for (std::size_t c = 0; c < columns; ++c) {
    for (std::size_t r = 0; r < rows; ++r) group[r] = tile[r * columns + c] / row[r];
    group_codes::uniform(group.data(), tokens, bits);
    for (std::size_t r = 0; r < rows; ++r) tile[r * columns + c] = group[r] * row[r];
  }
}

}  // namespace oscar
