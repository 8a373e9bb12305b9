// The registry of methods: one row for each method that a command knows, with what the code asks of it. oscar-fit
// --method takes the rows that are fitted, oscar-verify --methods those that are listed, and bundles name one of them.
// Adding a method is adding a row (table.cpp) and a test; nothing else compares ids of methods.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "registry/method_spec.h"

namespace oscar {

// What keys and values are multiplied by. A method of another paper has its basis in its description.
enum class MethodTransform : std::uint8_t {
  kIdentity,
  kHadamard,
  kEigenvectors,  // of the moments, then Hadamard (rotation/transforms.h); orthogonal
  kBalanced,      // fitted to the rows and the metric of their errors (rotation/metric_fit.h); not orthogonal
};

// What a method is to a comparison. Each role but kCompetitor has exactly one row.
enum class MethodRole : std::uint8_t {
  kCompetitor,
  kBaseline,         // every method is compared with it
  kNegativeControl,  // what a bundle has to beat
  kReference,        // published rotation files are of it, and the drift of other bundles is judged beside it
};

struct MethodRow {
  std::string id{};
  std::string summary{};  // what a cache does with it, for oscar-verify methods; empty where not listed
  std::string source{};   // paper or project, for reports; "bundle" where a bundle says all that there is to say
  MethodRole role = MethodRole::kCompetitor;
  bool listed = true;       // oscar-verify --methods knows it; else only a bundle of the method brings it along
  bool by_default = false;  // oscar-verify measures it where no methods are named, and with all and 2bit
  bool quantized = true;    // false: every token stays in BF16
  MethodTransform transform = MethodTransform::kIdentity;

  std::string fit_summary{};    // the transform, for oscar-fit --help; empty: oscar-fit does not know the method
  bool allocates_bits = false;  // block widths that share out a budget of --bits
  bool takes_widths = false;    // block widths of --widths, the same in all layers
  bool preferred = false;       // what oscar-fit takes where it collects the statistics itself
  std::string key_objective{}, value_objective{};  // names in published files; empty: the id
  std::string head_objective{};                    // the same where each KV head has a matrix; empty: the id
  std::string head_id{};  // of reports, where each KV head of the bundle has a matrix; empty: the id

  std::optional<MethodSpec> description{};  // of another paper's method, which the engine executes

  bool fitted() const { return !fit_summary.empty(); }
  bool needs_bundle() const { return fitted(); }
  bool metric_aware() const { return transform == MethodTransform::kBalanced; }  // fitted to rows and metric
  bool data_free() const { return transform == MethodTransform::kIdentity || transform == MethodTransform::kHadamard; }
  // The decode path has pages for it.
  bool paged() const { return !description || has_pages(*description); }
  bool two_bit() const { return description && description->key.bits == 2 && description->value.bits == 2; }
};

const std::vector<MethodRow>& method_registry();  // in the order of lists and reports

const MethodRow* find_method(const std::string& id);  // null: none
// The row of an id that oscar-fit --method takes. UsageError with the list for another one.
const MethodRow& fitted_method(const std::string& id);
const MethodRow& preferred_method();
const MethodRow& method_with(MethodRole role);  // not for kCompetitor
bool has_role(const std::string& id, MethodRole role);
std::vector<std::string> method_ids();       // of the listed rows
std::vector<std::string> default_methods();  // of those that oscar-verify measures where none are named

// Bundles name their method. Two names are none of the registry: "published", of rotation files, which do not say how
// they were made, and variants of the reference that begin with its id.
inline constexpr const char* kPublishedMethod = "published";
// The id under which a bundle of this method runs: the reference for published files, else its own.
std::string id_of_bundle(const std::string& bundle_method);
// Whether a bundle of this method may run as `id`.
bool runs_bundle(const std::string& id, const std::string& bundle_method);

}  // namespace oscar
