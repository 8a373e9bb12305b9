// Allocators of other papers, for the widths, the budget and the code of ours: so that a table tells what measured
// curves are worth, everything else being equal. Each has its own sensitivities and its own way from them to widths.
//
// Sensitivities: one list of numbers for each place, layer by layer, keys before values; where keys and values of a
// layer are chosen together, for each layer. What the numbers are stands beside each function. All budgets count as
// profile_bits() does, scale bytes included.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "rotation/waterfill.h"

namespace oscar {

using Sensitivities = std::vector<std::vector<double>>;

// What an allocator's sensitivities are taken from.
enum class AllocatorInput {
  kStatistics,  // those of oscar-collect
  kWeights,     // the checkpoint
  kText         // the checkpoint, run on calibration text
};

// What its sensitivities are: of kStatistics those of fit_sensitivity.h, of kText those of curves/layer_sensitivity.h
// and curves/gradient_sensitivity.h, each by the function of its name.
enum class AllocatorMeasure {
  kOutputVariances,
  kRowVariances,
  kSideLosses,
  kSquaredWeightNorms,
  kTiedLayerKl,
  kPairOutputErrors,
  kFirstOrderScores,
  kWeightGradientNorms
};

struct AllocatorRow {
  std::string id;      // as in --allocate
  std::string source;  // paper or repository
  AllocatorInput input;
  AllocatorMeasure measure;
  std::string summary;  // one line
  Allocation (*allocate)(const Sensitivities& sensitivities, int head_dim, double bits);
};

const std::vector<AllocatorRow>& allocators();
const AllocatorRow* find_allocator(const std::string& id);  // null: none of that name

// All of these: UsageError as require_budget(); std::invalid_argument for sensitivities of another shape, negative ones
// or NaN.

// AATC (2608.14191): one reverse water-filling over all channels of all layers, keys and values: b = log2(variance /
// theta) / 2. A block gets the mean over its channels of all heads, rounded (kRoundedSteps); theta falls until the
// budget is spent. [places][4 c]: variances of the c channels of each block, block by block.
Allocation water_fill_channels(const Sensitivities& variances, int head_dim, double bits);

// SPECTRA (2608.07915): the same within each place, which has the whole budget to itself.
Allocation water_fill_places(const Sensitivities& variances, int head_dim, double bits);

// RateQuant (2605.06675): b = mean + (ln w - mean of ln w) / ln beta, rounded, with D(b) = a beta^-b fitted to the
// distortions of our quantiser (rate_base()). One width for a place; the mean rises until the budget is spent.
// [places][1]: w.
Allocation rate_distortion_widths(const Sensitivities& weights, int head_dim, double bits);
double rate_base();  // beta: least squares of ln D over 0, 1, 2 and 4 bits

// spectral-kv (2502.15075): one width for a place; the steps of largest gain |W|^2 (2^-2b - 2^-2b') / (b' - b) first.
// [places][1]: |W|^2, squared Frobenius norms of W_K and W_V.
Allocation greedy_norm_widths(const Sensitivities& squared_norms, int head_dim, double bits);

// The widths that a side has as a whole, where candidates are numbered by them.
inline constexpr std::array<std::uint8_t, 4> kWholeWidths = {0, 1, 2, 4};

// Model-Optimizer's auto_quantize_kv_cache: one width for keys and values of a layer together; least sum, exactly.
// [layers][4]: KL with both at kWholeWidths[i].
Allocation tied_widths(const Sensitivities& kl, int head_dim, double bits);

// KVTuner (2502.04420): a pair of widths for a layer; least sum, exactly. Its pruning of dominated pairs leaves an
// exact program as it is; its search over groups of layers by the accuracy of a task is replaced by the sum.
// [layers][16]: error of the attention's output with keys at kWholeWidths[i / 4] and values at kWholeWidths[i % 4].
Allocation paired_widths(const Sensitivities& errors, int head_dim, double bits);

// PM-KVQ (2505.18610): one width for a place; least sum, exactly. [places][4]: scores of kWholeWidths.
Allocation scored_widths(const Sensitivities& scores, int head_dim, double bits);

// KVmix (2506.08018): layers are ranked by the gradient, keys and values apart; the first get the wider and the others
// the narrower of the two whole widths between which the budget lies, as many as fit. [places][1].
Allocation ranked_widths(const Sensitivities& gradient_norms, int head_dim, double bits);

}  // namespace oscar
