#include "export/export_format.h"

#include <algorithm>

#include "base/edit_distance.h"
#include "base/errors.h"
#include "export/engine_limits.h"
#include "export/writers.h"

namespace oscar {
namespace {

constexpr const char* kServeNote = "README.md there has the serve command.";

ExportFormat branch_format(int version, std::string id, std::string summary) {
  return {.id = std::move(id),
          .summary = std::move(summary),
          .version = version,
          .window_step = 8,  // published: windows are counted in quantization pages of 8 tokens
          .has_card = true,
          .note = kServeNote,
          .unsupported = branch_unsupported,
          .form = branch_form,
          .plan = branch_plan,
          .write = write_branch};
}

ExportFormat engine_format(std::string id, const PluginEngine& (*engine)()) {
  const std::string name = engine().name;
  return {.id = std::move(id),
          .summary = "the bundle, and the commands for " + name + "'s releases with oscar-kv",
          .has_card = true,
          .note = kServeNote,
          .model_use = "whose layers the adapter for " + name + " must serve",
          .plugin = engine,
          .latents = engine().latents,
          .unsupported = engine_unsupported,
          .check_model = engine_check_model,
          .bf16_reason = engine_bf16_reason,
          .plan = engine_plan,
          .write = write_engine};
}

std::vector<ExportFormat> build() {
  ExportFormat layers = branch_format(1, "sglang-branch", "the OSCAR branch of SGLang, one rotation a layer");
  layers.method = "oscar", layers.scopes = {"layer"};
  ExportFormat heads = branch_format(2, "sglang-branch-v2", "the same, one for each KV head");
  heads.method = "oscar", heads.scopes = {"head", "layer"};
  ExportFormat general = branch_format(3, "sglang-branch-v3", "the same, method balanced");
  general.method = "balanced", general.general = true;
  return {layers,
          heads,
          general,
          {.id = "transformers",
           .summary = "the bundle, and a generate() of its own that loads it",
           .has_card = true,
           .note = "README.md there says how a model takes it along.",
           .plan = transformers_plan,
           .write = write_transformers},
          engine_format("vllm", vllm_engine),
          engine_format("sglang", sglang_engine),
          {.id = "hub",
           .summary = "the folder to upload to the Hugging Face Hub, which --bundle hf:ORG/NAME reads",
           .has_card = true,
           .note = "Upload it with: hf upload ORG/NAME FOLDER",
           .latents = true,
           .unsupported = hub_unsupported,
           .plan = hub_plan,
           .write = write_hub},
          {.id = "absorbed",
           .summary = "a Hugging Face checkpoint with the value transform inside; needs --model",
           .note = "oscar_bundle there goes with the new checkpoint: its values need no transform.",
           .model_use = "the checkpoint to rewrite",
           .rewrites_model = true,
           .check_model = check_absorb,
           .plan = absorbed_plan,
           .write = write_absorbed}};
}

}  // namespace

const std::vector<ExportFormat>& export_formats() {
  static const std::vector<ExportFormat> table = build();
  return table;
}

const ExportFormat* find_export_format(const std::string& id) {
  const std::vector<ExportFormat>& table = export_formats();
  const auto found = std::find_if(table.begin(), table.end(), [&](const ExportFormat& row) { return row.id == id; });
  return found == table.end() ? nullptr : &*found;
}

const ExportFormat& written_format(const std::string& id) {
  const ExportFormat* found = find_export_format(id);
  if (found != nullptr && found->write != nullptr) return *found;
  std::string list;
  std::vector<std::string> ids;
  for (const ExportFormat& row : export_formats()) {
    if (row.write == nullptr) continue;
    list += (list.empty() ? "" : ", ") + row.id;
    ids.push_back(row.id);
  }
  throw UsageError("--format '" + id + "' is not one that this version writes" + did_you_mean(id, ids, ";") +
                   " it writes " + list);
}

std::string export_format_list() {
  std::string list;
  for (const ExportFormat& row : export_formats()) list += (list.empty() ? "" : ", ") + row.id;
  return list;
}

}  // namespace oscar
