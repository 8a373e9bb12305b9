// The table of formats in which a bundle is served: oscar-export --format writes them, oscar-verify --as judges what
// they make of a bundle, and oscar-fit --for fits what they carry. Adding one is a row (export_format.cpp) and a file
// with the functions that the row names.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "export/served_form.h"
#include "registry/registry.h"

namespace oscar {

struct ExportOptions {
  fs::path bundle;                    // the directory that was exported
  std::optional<Json> report;         // report.json of oscar-verify, for the card's measured numbers
  std::string model_path;             // of the card's serve command (export_card.h)
  const Checkpoint* model = nullptr;  // that the format rewrites
  // Of its tensors that change: kF32, or kBF16 (smaller; logits then move by its rounding). Nothing: BF16 where the
  // source stores them quantized, else F32.
  std::optional<DType> dtype;
  std::string tool_version;
  bool overwrite = false;
};

struct ExportFormat {
  std::string id{};                   // value of --format, --as and --for
  std::string summary{};              // for oscar-export --help; empty where it writes nothing
  int version = 0;                    // of the rotation files that engines load; 0: it has none and carries everything
  bool general = false;               // such files: transforms that are not orthogonal, keys without their mean
  std::string method{};               // such files: what oscar-fit --for takes where no method is given
  std::vector<std::string> scopes{};  // such files: what it takes of --scope, the first by default; empty: all
  std::int64_t window_step = 1;       // BF16 windows are multiples of so many tokens
  bool has_card = false;              // a card with measured numbers and the serve command; else --report has no place
  std::string note{};                 // for people, when it is written
  std::string model_use{};            // why it needs --model: "the checkpoint to rewrite"; empty: it does not
  bool rewrites_model = false;        // what it writes is a checkpoint of its own

  // Why it cannot carry a bundle, one sentence with the nearest way out. Null: it carries every bundle.
  std::optional<std::string> (*unsupported)(const ExportFormat& format, const Bundle& bundle) = nullptr;
  // What an engine computes with. Null: the bundle as it is.
  ServedForm (*form)(const ExportFormat& format, const Bundle& bundle) = nullptr;
  // InputError for a model that it cannot rewrite, or that its engine does not serve. Null: any model of the bundle.
  void (*check_model)(const Checkpoint& model, const Bundle& bundle) = nullptr;
  // "format sglang of 4 layers": what would be written.
  std::string (*plan)(const ServedForm& form, const ExportOptions& options) = nullptr;
  // Writes the directory whole or not at all; returns the names of its files. Null: engines read the bundle itself.
  std::vector<std::string> (*write)(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                    const ExportOptions& options) = nullptr;

  bool published() const { return version > 0; }
  bool needs_model() const { return !model_use.empty(); }
  // Whether it can carry what oscar-fit makes of statistics by this method.
  bool carries(const MethodRow& method) const {
    return !published() || (!method.allocates_bits && (general || !method.metric_aware()));
  }
};

// In the order of lists; the first that loses nothing of a bundle is what it is judged as.
const std::vector<ExportFormat>& export_formats();
const ExportFormat* find_export_format(const std::string& id);  // null: none
// UsageError, with the list, for a format that oscar-export does not write.
const ExportFormat& written_format(const std::string& id);
std::string export_format_list();  // all ids, with commas

}  // namespace oscar
