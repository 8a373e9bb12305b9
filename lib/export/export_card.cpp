#include "export/export_card.h"

#include <sstream>

#include "base/foreign_text.h"
#include "base/formatted.h"
#include "base/markup.h"
#include "base/shell.h"
#include "bundle/manifest.h"
#include "bundle/model_card.h"
#include "checkpoint/model_name.h"

namespace oscar {
namespace {

constexpr std::size_t kMostRows = 10, kMostOthers = 6;  // in the table; of methods other than candidates

std::string number_at(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_number()
             ? formatted("%.4g", object[key].get<double>())
             : "-";
}

// The methods of a report as a Markdown table.
void measured(std::ostringstream& out, const Json& report) {
  out << "Evaluated in the form that this format serves. Context " << number_at(report, "context")
      << " tokens, KL in nats against the BF16 cache on the same tokens.\n\n"
      << "| method | path | bits per element | mean KL | 99.9 % KL | PPL ratio | same top token |\n"
      << "|---|---|---|---|---|---|---|\n";
  if (!report.contains("methods") || !report["methods"].is_array()) return;
  std::size_t shown = 0, left_out = 0;
  for (const Json& method : report["methods"]) {
    const bool evaluated = method.is_object() && method.contains("evaluated") && method["evaluated"] == true;
    if (shown >= (evaluated ? kMostRows : kMostOthers)) {
      ++left_out;
      continue;
    }
    ++shown;
    const auto text = [&](const char* key) {
      return method.is_object() && method.contains(key) && method[key].is_string()
                 ? markdown_text(printable(method[key].get<std::string>()))
                 : std::string("-");
    };
    const Json kl = method.is_object() && method.contains("kl") ? method["kl"] : Json::object();
    out << "| " << text("id") << " | " << text("path") << " | " << number_at(method, "bits_per_element") << " | "
        << number_at(kl, "mean") << " | " << number_at(kl, "p999") << " | " << number_at(method, "ppl_ratio") << " | "
        << number_at(method, "same_top1") << " |\n";
  }
  if (left_out > 0) out << "\nThe report has " << left_out << " more rows.\n";
}

constexpr const char* kUnknownFolder = "/path/to/";

// The engine build that reads a format.
std::string engine_text(int version) {
  const std::string fork =
      "the OSCAR branch of SGLang (repository FutureMLS-Lab/OSCAR), installed from source: no release of SGLang up to "
      "0.5.23 knows `--kv-cache-dtype int2`.";
  if (version == 1) return "These files are read by " + fork;
  return "These files are read by " + fork + " They need its `sglang-rebase` branch of August 2026 or later: " +
         "earlier builds read only version 1 (`oscar-export --format sglang-branch`).";
}

}  // namespace

std::string served_model(const Bundle& bundle, const std::string& model_path) {
  if (!model_path.empty()) return model_path;
  const std::string name = bundle.model.contains("name") && bundle.model["name"].is_string()
                               ? plain_model_name(bundle.model["name"].get<std::string>())
                               : std::string();
  return name.find('/') != std::string::npos ? name : kUnknownFolder + (name.empty() ? "model" : name);
}

std::string unknown_folder_note(const std::string& model) {
  if (!model.starts_with(kUnknownFolder)) return "";
  return std::string("`") + kUnknownFolder + "` stands for the folder that holds the model on your machine.\n\n";
}

std::string branch_serve_command(const Bundle& bundle, const ExportCard& card) {
  const LayerTransform& layer = bundle.layers.front();
  const std::int64_t group = bundle.quant_group > 0 ? bundle.quant_group : layer.head_dim;
  std::ostringstream out;
  out << "export SGLANG_ENABLE_MIXED_KV_WINDOWS=1\n"
      << "export SGLANG_MIXED_KV_PREFIX_TOKENS=" << bundle.windows.sink << "\n"
      << "export SGLANG_MIXED_KV_RECENT_TOKENS=" << bundle.windows.recent << "\n"
      << "export SGLANG_MIXED_KV_HP_DTYPE=bfloat16\n"
      << "export SGLANG_OSCAR_K_ROTATION_PATH=\"$PWD\"/" << shell_word(card.key_file) << "\n"
      << "export SGLANG_OSCAR_V_ROTATION_PATH=\"$PWD\"/" << shell_word(card.value_file) << "\n"
      << "export SGLANG_OSCAR_K_CLIP_RATIO=" << json_float(bundle.global_key_clip) << "\n"
      << "export SGLANG_OSCAR_V_CLIP_RATIO=" << json_float(bundle.global_value_clip) << "\n"
      << "python -m sglang.launch_server --model-path " << shell_word(served_model(bundle, card.model_path)) << " \\\n"
      << "  --kv-cache-dtype int2 --kv-cache-quant-group-size " << group << " --page-size 8 \\\n"
      << "  --prefill-attention-backend fa3 --decode-attention-backend triton\n";
  return out.str();
}

std::string measured_section(const std::string& format, const Json* report) {
  std::ostringstream out;
  out << "## Measured\n\n";
  if (report != nullptr) {
    measured(out, *report);
  } else {
    out << "No report was given. `oscar-verify --as " << format
        << " --report report.json`, then `oscar-export --report report.json`, puts its numbers here.\n";
  }
  return out.str();
}

std::string export_card(const Bundle& bundle, const ExportCard& card, const Json* report) {
  std::ostringstream out;
  out << card_head(bundle, "2-bit KV-cache rotations, SGLang files");
  out << "## Files\n\n`" << card.key_file << "` and `" << card.value_file
      << "` are `torch.save` dictionaries of format "
      << (card.version == 1   ? "version 1 (one matrix for each layer)"
          : card.version == 2 ? "version 2 (one matrix for each KV head)"
                              : "version 3 (query side, key mean and output side where the transform has them)")
      << ", loadable with `torch.load(..., weights_only=True)`. `SHA256SUMS` is checked with `sha256sum -c`. The key "
         "`calibration` records where the matrices come from; loaders ignore it.\n\n";
  out << "## Serve\n\n"
      << engine_text(card.version) << " In this directory:\n\n```sh\n"
      << branch_serve_command(bundle, card) << "```\n\n";
  out << unknown_folder_note(served_model(bundle, card.model_path));
  for (const std::string& change : card.changes)
    out << "Changed from the bundle as fitted: " << markdown_text(change) << ".\n\n";
  return out.str() + measured_section(card.format, report) + "\n" + provenance_section(bundle);
}

}  // namespace oscar
