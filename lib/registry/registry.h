// The registry of methods: one row for each method that a command knows, with all properties that the code needs.
// oscar-fit --method accepts the fitted rows, oscar-verify --methods the listed rows, and bundles name one of them. To
// add a method, add a row (table.cpp) and a test; no other code compares method ids.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "registry/method_spec.h"

namespace oscar {

// The transform that multiplies keys and values. A method of another paper has its basis in its description.
enum class MethodTransform : std::uint8_t {
  kIdentity,
  kHadamard,
  kEigenvectors,  // eigenvectors of the moments, then Hadamard (fit/orthogonal_fit.cpp); orthogonal
  kBalanced,      // fitted to the rows and their error metric (fit/metric_fit.h); not orthogonal
};

// The budget of methods that allocate bits, where none is given: bits per element, parameters included.
inline constexpr double kUsualBits = 2.25;
// The same for latent attention, where a block refines another: a fifth of the KL, and no slower to decode.
inline constexpr double kLatentBits = 4.0;
inline constexpr double usual_bits(bool latent) { return latent ? kLatentBits : kUsualBits; }

// The role of a method in a comparison. Each role except kCompetitor has exactly one row.
enum class MethodRole : std::uint8_t {
  kCompetitor,
  kBaseline,         // every other method is compared with it
  kNegativeControl,  // a bundle must be better than it
  kReference,        // the method of published rotation files; drift of other bundles is compared with it
};

struct MethodRow {
  std::string id{};
  std::string summary{};  // its effect in the cache, for oscar-verify methods; empty if not listed
  std::string source{};   // paper or project, for reports; "bundle" if the bundle has the details
  MethodRole role = MethodRole::kCompetitor;
  bool listed = true;       // oscar-verify --methods accepts it; else only a bundle of the method provides it
  bool by_default = false;  // oscar-verify measures it if no methods are named, and with all and 2bit
  bool quantized = true;    // false: every token stays in BF16
  MethodTransform transform = MethodTransform::kIdentity;

  std::string fit_summary{};    // the transform, for oscar-fit --help; empty: oscar-fit does not offer the method
  bool allocates_bits = false;  // distributes a budget of --bits as group bit widths
  bool preferred = false;       // oscar-fit uses it if it collects the statistics itself
  std::string key_objective{}, value_objective{};  // names in published files; empty: the id
  std::string head_objective{};                    // the same if each KV head has a matrix; empty: the id
  std::string head_id{};  // id in reports if each KV head of the bundle has a matrix; empty: the id

  std::optional<MethodSpec> description{};  // of another paper's method, which the engine runs

  bool fitted() const { return !fit_summary.empty(); }
  bool needs_bundle() const { return fitted(); }
  bool metric_aware() const { return transform == MethodTransform::kBalanced; }  // fitted to rows and metric
  bool data_free() const { return transform == MethodTransform::kIdentity || transform == MethodTransform::kHadamard; }
  bool paged() const { return !description; }  // true if the decode path has pages for it
  bool two_bit() const { return description && description->key.bits == 2 && description->value.bits == 2; }
};

const std::vector<MethodRow>& method_registry();  // in the order of lists and reports

const MethodRow* find_method(const std::string& id);  // null: none
// The row of an id that oscar-fit --method accepts. UsageError with the list for any other id.
const MethodRow& fitted_method(const std::string& id);
const MethodRow& preferred_method();
const MethodRow& method_with(MethodRole role);  // not for kCompetitor
bool has_role(const std::string& id, MethodRole role);
std::vector<std::string> method_ids();       // of the listed rows
std::vector<std::string> default_methods();  // methods that oscar-verify measures if none are named

// Bundles name their method. Two kinds of names are not in the registry. "published" is for rotation files that do not
// say how they were made; the others are variants of the reference that begin with its id.
inline constexpr const char* kPublishedMethod = "published";
// The id under which a bundle of this method runs: the reference for published files, else its own id.
std::string id_of_bundle(const std::string& bundle_method);
// True if a bundle of this method may run as `id`.
bool runs_bundle(const std::string& id, const std::string& bundle_method);

}  // namespace oscar
