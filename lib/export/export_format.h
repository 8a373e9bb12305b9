// The table of export formats. oscar-export --format writes them, oscar-verify --as evaluates a bundle in them, and
// oscar-fit --for fits bundles that they can carry. To add one, add a row (export_format.cpp) and a file with the row's
// functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "export/served_form.h"
#include "registry/registry.h"

namespace oscar {

struct ExportOptions {
  fs::path bundle;                    // the exported directory
  std::optional<Json> report;         // report.json of oscar-verify, for the measured numbers on the card
  std::string model_path;             // for the card's serve command (export_card.h)
  const Checkpoint* model = nullptr;  // the checkpoint that the format rewrites
  // Dtype of changed tensors: kF32, or kBF16 (smaller, but rounding moves the logits). Empty: BF16 if the source stores
  // them quantized, otherwise F32.
  std::optional<DType> dtype;
  std::string tool_version;
  bool overwrite = false;
};

struct PluginEngine;

struct ExportFormat {
  std::string id{};                   // value of --format, --as and --for
  std::string summary{};              // for oscar-export --help; empty if it writes nothing
  int version = 0;                    // of the rotation files that engines load; 0: no such files, and the format
                                      // carries everything
  bool general = false;               // such files: allow transforms that are not orthogonal and centered keys
  std::string method{};               // such files: default method of oscar-fit --for
  std::vector<std::string> scopes{};  // such files: allowed values of --scope, the default first; empty: all
  std::int64_t window_step = 1;       // BF16 windows are multiples of this many tokens
  bool has_card = false;              // has a card with measured numbers and the serve command; otherwise --report is
                                      // not allowed
  std::string note{};                 // shown to the user after writing
  std::string model_use{};            // why it needs --model: "the checkpoint to rewrite"; empty: it does not
  bool rewrites_model = false;        // writes a separate checkpoint
  // The engine that the Python package is a plugin of (engine_limits.h). Null: none.
  const PluginEngine& (*plugin)() = nullptr;

  bool latents = false;  // carries bundles of latent attention (MLA)
  // What unsupported() asks beside `latents`. Null: nothing.
  std::optional<std::string> (*unsupported)(const ExportFormat& format, const Bundle& bundle) = nullptr;
  // The form that an engine computes with. Null: the bundle unchanged.
  ServedForm (*form)(const ExportFormat& format, const Bundle& bundle) = nullptr;
  // InputError for a model that it cannot rewrite or that its engine does not support. Null: any model of the bundle.
  void (*check_model)(const ExportFormat& format, const Checkpoint& model, const Bundle& bundle) = nullptr;
  // Why an engine keeps a layer of the model in BF16; empty: it does not. Null: it quantizes all layers of the bundle.
  std::optional<std::string> (*bf16_reason)(const ExportFormat& format, const ModelConfig& model,
                                            std::int64_t layer) = nullptr;
  // "format sglang-branch of 4 layers": describes the planned output.
  std::string (*plan)(const ServedForm& form, const ExportOptions& options) = nullptr;
  // Writes the directory atomically and returns its file names. Null: engines read the bundle itself.
  std::vector<std::string> (*write)(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                    const ExportOptions& options) = nullptr;

  bool published() const { return version > 0; }
  bool needs_model() const { return !model_use.empty(); }
  // Whether it can carry the result of this oscar-fit method.
  bool carries(const MethodRow& method) const {
    return !published() || (!method.allocates_bits && (general || !method.metric_aware()));
  }
};

// Why a format cannot carry a bundle: one sentence with the nearest solution. Empty: it can.
std::optional<std::string> unsupported(const ExportFormat& format, const Bundle& bundle);

// In display order. A bundle is evaluated in the first format that is lossless for it.
const std::vector<ExportFormat>& export_formats();
const ExportFormat* find_export_format(const std::string& id);  // null if unknown
// UsageError, with the list, for a format that oscar-export does not write.
const ExportFormat& written_format(const std::string& id);
std::string export_format_list();  // all ids, comma-separated

}  // namespace oscar
