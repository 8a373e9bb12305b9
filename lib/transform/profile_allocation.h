// Width profiles of one side of one layer, and the distribution of a bit budget over them.
//
// A place is one side (keys or values) of one layer. Its candidates are profiles: the widths of its four blocks, each
// with the error that it would cause alone. Errors add up over places. Within a place they may depend on the widths in
// any way: the analytic cost of keys is not a sum over blocks (waterfill.h), and measured curves are plain numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "codec/codec.h"

namespace oscar {

// Bits of the blocks, strongest directions first.
struct Widths : std::array<std::uint8_t, kBands> {
  bool refined = false;  // RowCode::refined
  Widths() : array{} {}
  Widths(std::uint8_t first, std::uint8_t second, std::uint8_t third, std::uint8_t fourth, bool refines = false)
      : array{first, second, third, fourth}, refined(refines) {}
  bool operator==(const Widths&) const = default;
  auto operator<=>(const Widths&) const = default;
};
// [4, 2, 1, 1], or [4, 2, 1, 2, "refined"].
void to_json(Json& json, const Widths& widths);

// "4-2-1-0", "4-2-1-2 refined"; empty without blocks.
std::string widths_text(std::span<const std::uint8_t> widths, bool refined = false);
inline std::string widths_text(const Widths& widths) { return widths_text(widths, widths.refined); }

struct ProfilePoint {
  Widths widths{};
  double error = 0.0;  // error of only this place; any unit that all places share
};

// The 35 profiles w0 >= w1 >= w2 >= w3 of widths 0, 1, 2, 4, in ascending order of their digits: 0-0-0-0 first.
const std::vector<Widths>& falling_profiles();
// These, and then for latent attention the refined ones: 4-a-b-c of a >= b and c > 0, in ascending order.
const std::vector<Widths>& latent_profiles();

// Bits per element of a row, scale bytes included: (sum over blocks with w > 0 of w d/4 + 8) / d.
double profile_bits(const Widths& widths, int head_dim);

std::string bits_text(double bits);  // "2.25", "3": at most four digits

// UsageError for a budget below 1/4 bit or above the bits of 4-4-4-4 everywhere.
void require_budget(double bits, int head_dim);

// Bits and error of one candidate: widths of one side, or of several sides that are chosen together.
struct BitsAndError {
  std::size_t bits = 0;  // bits of one row, scale bytes included: a multiple of 8
  double error = 0.0;
};

// Bits of one row of a profile: profile_bits() times head_dim, without rounding.
std::size_t row_bits(const Widths& widths, int head_dim);

// Bits that rows of `places` sides may use together: the largest integer within the budget.
std::size_t rows_budget(std::size_t places, int head_dim, double bits);

// Chooses one candidate per unit: the least total error with at most `most` bits together; ties go to the fewest bits.
// Exact: a knapsack over multiples of 8 bits. Returns the index of the choice in each unit's list, or an empty list if
// even the cheapest candidates need more. candidates: [units][candidates], no list empty.
std::vector<std::size_t> choose_within(const std::vector<std::vector<BitsAndError>>& candidates, std::size_t most);

// Chooses one candidate per place: the least total error whose mean profile_bits() over the places is at most `bits`,
// by choose_within(). (One row of a block takes a multiple of 8 bits, since 32 divides head_dim.) Returns the index of
// the choice in each place's list. places: [P][candidates]. UsageError as require_budget(), and if the cheapest
// candidates together exceed the budget. std::invalid_argument for no places, a place without candidates, an error that
// is NaN, or a head_dim that 32 does not divide.
std::vector<std::size_t> allocate_profiles(const std::vector<std::vector<ProfilePoint>>& places, int head_dim,
                                           double bits);

}  // namespace oscar
