// Selects the methods of a run under comparable conditions: the authors' settings, common windows, or equal bytes.
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

// A candidate bundle and the id of its rows.
struct NamedBundle {
  std::string id;
  const Bundle* bundle = nullptr;
};

struct ComparisonRequest {
  std::vector<std::string> ids;          // method ids
  std::vector<std::string> comparisons;  // authors, common, bytes in any order
  CacheWindows windows;                  // the common windows, also used for the bundle's method
  std::int64_t context = 2048;
  std::optional<double> bits;  // target of `bytes`; empty: bits of the bundle's method, or of a 2.25-bit code
};

struct MethodSelection {
  std::vector<ComparedMethod> methods;  // bf16 once, the others once per comparison
  std::vector<LeftOut> left_out;
  double target_bits = 0;  // of `bytes`; 0: not requested
};

// "all": every method, including the methods of any bundles. "2bit": bf16 and the methods with 2-bit codes for keys and
// values. Other names stay; repeats from the expansion are dropped.
std::vector<std::string> expand_methods(const std::vector<std::string>& names, const std::vector<NamedBundle>& bundles);

// UsageError for an unknown comparison, an unknown or repeated method, an invalid target, or a named method that does
// not fit the model. Methods from `all` and `2bit` that do not fit are left out. lenient: named methods may also be
// left out. The target of `bytes` comes from the first bundle.
MethodSelection select_methods(const ComparisonRequest& request, const ModelConfig& model,
                               const std::vector<NamedBundle>& bundles, bool lenient);

// Adjusts a method to `bits` per element at the context, within 2 %. Counts a sequence's actual memory (complete pages,
// buffers at capacity). The block becomes one group. The windows get the remaining bytes: the sink window first, up to
// 64 tokens, then the recent window. Groups grow from 32 to 128 if the shortest windows need more. Empty: no setting
// reaches the target; *least is then the method's minimum in the same unit.
std::optional<MethodSpec> with_bits(const MethodSpec& method, double bits, const ModelConfig& model,
                                    std::int64_t context, double* least);

struct FoundWindows {
  std::optional<CacheWindows> windows;  // empty: none is within 2 % of the target
  double least_bits = 0;                // minimum over all windows tried
};

// Finds the windows whose bits_of() is nearest to `bits` (the same rule). The flush block has `flush` tokens, and the
// recent window at least `least_recent`.
FoundWindows windows_for_bits(double bits, std::int64_t context, std::int64_t least_recent, std::int64_t flush,
                              const std::function<double(const CacheWindows&)>& bits_of);

}  // namespace oscar
