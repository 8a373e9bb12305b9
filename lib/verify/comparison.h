// The methods of one run, under fair conditions: as their authors run them, with common windows, or at equal bytes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bundle/bundle.h"
#include "cache/kv_method.h"
#include "report/report.h"

namespace oscar {

struct ComparedMethod {
  KvMethod method;
  std::string comparison;  // authors | common | bytes
  std::string settings;    // windows and groups in words
};

// A bundle under judgment and the id of its rows.
struct NamedBundle {
  std::string id;
  const Bundle* bundle = nullptr;
};

struct ComparisonRequest {
  std::vector<std::string> ids;          // method ids
  std::vector<std::string> comparisons;  // authors, common, bytes in any order
  CacheWindows windows;                  // the common ones; those of the bundle's own method, too
  std::int64_t context = 2048;
  std::optional<double> bits;  // target of `bytes`; empty: what the bundle's method, or a 2.25-bit code, takes
};

struct MethodSelection {
  std::vector<ComparedMethod> methods;  // bf16 once, the others once for each comparison
  std::vector<LeftOut> left_out;
  double target_bits = 0;  // of `bytes`; 0: not asked for
};

// "all": every method (those of the bundles where there are some); "2bit": bf16 and the ones with 2-bit codes for keys
// and values. Other names stay, repeats of expanded ones go.
std::vector<std::string> expand_methods(const std::vector<std::string>& names, const std::vector<NamedBundle>& bundles);

// UsageError for an unknown comparison or method, a repeated one, a target that is no number of bits, or a named method
// that does not fit the model; ones that `all` and `2bit` brought in are left out then. lenient: ids may be left out.
// The target of `bytes` is that of the first bundle.
MethodSelection select_methods(const ComparisonRequest& request, const ModelConfig& model,
                               const std::vector<NamedBundle>& bundles, bool lenient);

// The method of a description brought to `bits` per element at the context, counted as a sequence holds them (whole
// pages, buffers at their capacity), within 2 %: its block becomes one group, its windows take what the codes leave
// (sink first, at most 64 tokens, then recent ones), and groups grow from 32 to 128 where the shortest windows take
// more. Empty: no setting reaches it; *least is what the method takes at least, in the same unit.
std::optional<MethodSpec> with_bits(const MethodSpec& method, double bits, const ModelConfig& model,
                                    std::int64_t context, double* least);

struct FoundWindows {
  std::optional<CacheWindows> windows;  // empty: none comes within 2 % of the target
  double least_bits = 0;                // of all windows that were tried
};

// The windows with blocks of `flush` and at least `least_recent` recent tokens (the same rule) whose bits_of() comes
// nearest to `bits`.
FoundWindows windows_for_bits(double bits, std::int64_t context, std::int64_t least_recent, std::int64_t flush,
                              const std::function<double(const CacheWindows&)>& bits_of);

}  // namespace oscar
