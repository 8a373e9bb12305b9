// Tuning of methods waterfill and balanced on the user's own text: measures what each layer's keys and values cost
// (waterfill), and searches the constants that theory leaves open, minimising KL under a floor for retrieval.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "checkpoint/checkpoint.h"
#include "moments/statistics.h"
#include "rotation/fit.h"
#include "tune/trial_log.h"

namespace oscar {

struct TuneOptions {
  std::vector<std::int32_t> text;  // token ids of the held-out document
  std::string text_name, text_sha256;
  std::int64_t context = 2048;
  std::int64_t sequences = 3;  // of each of the three splits
  std::int64_t prompts = 8;    // retrieval prompts of each split; 0: none
  double floor = 0.97;         // a trial must solve this share of what the closed form solves, and of BF16's prompts
  // A candidate takes the place of the best so far when it wins by this many standard errors of their difference, part
  // by part: the mean KL has heavy tails, and what one token decides does not hold on the next text.
  double margin = 2.0;
  std::uint64_t seed = 0;
  Windows windows;
  // Waterfill: other windows to try, each with the code bits that leave a sequence of `context` tokens as many bytes.
  std::vector<Windows> window_choices;
  fs::path log;
  std::function<void(const std::string&, std::int64_t done, std::int64_t total)> on_trial;
};

struct TuneResult {
  FitOptions options;                                      // with the weights and constants that won
  Windows windows;                                         // that won
  Score closed_form, chosen;                               // on the third split, which no choice has seen
  std::vector<double> key_sensitivity, value_sensitivity;  // [L] measured over predicted error, mean 1
  bool closed_form_kept = false;                           // nothing beat it on the second split
  Json trials;
};

// Code bits with which windows `to` take the bytes that `from` takes with `bits`, at `context` tokens.
double bits_for_windows(double bits, const Windows& from, const Windows& to, std::int64_t context);

// base: options of method waterfill or balanced. Split 1 measures sensitivities, split 2 chooses, split 3 scores.
// UsageError for another method or windows whose bits no widths can have; InputError for a text that is too short for
// three splits.
TuneResult tune(const Statistics& statistics, const FitOptions& base, const Checkpoint& checkpoint, Decoder& decoder,
                const Tokenizer& tokenizer, const TuneOptions& options);

}  // namespace oscar
