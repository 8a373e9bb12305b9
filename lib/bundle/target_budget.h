// The smallest budget of bits whose predicted quality meets a target, from measured curves.
//
// With S(b) the total of allocate_estimates() at b bits, the predicted KL of a budget is
//   KL(b) = E(b)                         where end-to-end KL E was measured at b bits (allocate_curves() says which),
//   KL(b) = S(b) E(n) / S(n)             elsewhere, n being the nearest budget where E was measured,
//   KL(b) = S(b)                         if E was not measured,
// because the KLs of single sides add up, except for a factor that hardly changes with bits.
//
// Perplexity: let p be the model's predictions with the exact cache and q those with the quantized one. The mean of
// ln p - ln q over tokens that p draws is the mean KL by its definition, so
//   perplexity of q / perplexity of p = e^KL.
// On text that p did not draw the mean of ln p - ln q scatters around that; docs/curves.md has what was measured.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bundle/curves.h"

namespace oscar {

// Budgets that a target is met by: 1/4 bit to what 4-4-4-4 everywhere takes, in steps of 1/8 bit. Ascending.
std::vector<double> target_budgets(std::int64_t head_dim);

struct BudgetRow {
  double bits = 0.0;
  PredictedKl predicted;
  bool measured = false;  // end-to-end KL was measured at exactly these bits
};

// A row for each of target_budgets() that widths can be allocated for: all of them, if every side has analytic costs.
std::vector<BudgetRow> predict_budgets(const Curves& curves);

// The first row whose KL is at most `kl`; nothing where no row's is.
std::optional<std::size_t> smallest_budget(const std::vector<BudgetRow>& rows, double kl);
// The row of least KL; the first of equal ones. Needs a row.
std::size_t best_budget(const std::vector<BudgetRow>& rows);

// The budget whose end-to-end KL is to be measured next, as an index into target_budgets(): the smallest that meets the
// target, or the best if none does. Nothing if it is known: then the choice is settled.
std::optional<std::size_t> next_budget(const Curves& curves, double kl);

double perplexity_ratio(double kl);     // e^kl
double kl_of_perplexity(double ratio);  // ln ratio

}  // namespace oscar
