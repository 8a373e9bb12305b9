#include "export/vllm_export.h"

#include <sstream>

#include "base/errors.h"
#include "base/shell.h"
#include "bundle/model_card.h"
#include "export/bundle_copy.h"
#include "export/checksums.h"
#include "export/export_card.h"
#include "export/vllm_limits.h"

namespace oscar {
namespace {

constexpr std::int64_t kWindowPage = 64, kRingSlack = 15;

std::string digits(std::int64_t n) { return std::to_string(n); }

std::int64_t window_pages(std::int64_t tokens) { return (tokens + kWindowPage - 1) / kWindowPage; }

std::optional<std::string> unserved_layer(const LayerTransform& layer, std::int64_t group, const PluginEngine& engine) {
  const std::string name = "layer " + digits(layer.layer) + " of the bundle has ";
  const std::int64_t d = layer.head_dim;
  if (const auto reason = vllm_head_refusal(d, engine)) return name + *reason;
  if (layer.key.blocks() != layer.value.blocks()) {
    return name +
           "keys and values of two layouts, which the decode kernel does not read; fit both with one layout, or " +
           "use format transformers";
  }
  if (!layer.key.blocks() && group != 0 && group != d) {
    return name + "scales for groups of " + digits(group) +
           " channels, and the decode kernel reads one scale a head; " +
           "fit without --group, or use format transformers";
  }
  if (layer.key.rotated_mean && !layer.key.blocks()) {
    return name +
           "the mean of keys before RoPE taken away and keys in one width, which the decode kernel does not read; "
           "fit " +
           "with --center mean, or use format transformers";
  }
  return std::nullopt;
}

std::string vllm_command(const std::string& model) {
  return "vllm serve " + shell_word(model) +
         " \\\n"
         "  --dtype bfloat16 --kv-cache-dtype oscar --attention-backend OSCAR --no-enable-prefix-caching\n";
}

std::string sglang_command(const std::string& model) {
  return "sglang serve " + shell_word(model) +
         " \\\n"
         "  --dtype bfloat16 --attention-backend oscar --page-size 64 --max-running-requests 32 \\\n"
         "  --disable-prefill-cuda-graph --disable-radix-cache\n";
}

// releases: the engine with the releases that the plugin serves; notes: sentences on what was run and is refused.
std::string plugin_card(const ServedForm& form, const ExportOptions& options, const PluginEngine& engine,
                        const std::string& releases, std::string (*command)(const std::string& model),
                        const std::string& notes) {
  const std::string model = served_model(form.bundle, options.model_path);
  std::ostringstream out;
  out << card_head(form.bundle, std::string("2-bit KV cache for ") + engine.name) << "## Serve\n\n"
      << "The Python package oscar-kv (the wheel that `scripts/wheel` builds; it is on no package index) is a plugin "
         "of "
      << releases << ", which finds it by itself. In this folder:\n\n```console\n"
      << "OSCAR_KV_BUNDLE=\"$PWD\"/" << kBundleFolder << " " << command(model) << "```\n\n"
      << unknown_folder_note(model) << notes << " `SHA256SUMS` is checked with `sha256sum -c`.\n\n";
  return out.str() + measured_section(form.format, options.report ? &*options.report : nullptr) + "\n" +
         provenance_section(form.bundle);
}

std::string vllm_card(const ServedForm& form, const ExportOptions& options) {
  return plugin_card(form, options, kVllmEngine, std::string("vLLM ") + kVllmRelease + ".x", vllm_command,
                     "The adapter was run in vLLM's engine on an H100. "
                     "`python -m oscar_kv.serve_check MODEL oscar_bundle` compares tasks and throughput with the BF16 "
                     "cache on your GPU. Layers with a sliding window, linear attention or a soft cap stay in BF16. "
                     "Speculative decoding works with ngram and a draft model. KV transfer and context parallelism are "
                     "refused.");
}

std::string sglang_card(const ServedForm& form, const ExportOptions& options) {
  return plugin_card(form, options, kSglangEngine, std::string("SGLang ") + kSglangRelease, sglang_command,
                     "Each of the 32 requests has BF16 windows, whose memory grows with that number. Without "
                     "`--disable-radix-cache` requests share prefixes, which needs a sink of whole pages (`--windows "
                     "64,256`). The adapter ran SGLang's own Python on a CPU; it was not measured on a GPU. "
                     "Layers with a sliding window or a soft cap stay in BF16. Speculative decoding, disaggregation "
                     "and the hierarchical cache are refused.");
}

std::string plan_for(const ServedForm& form, const PluginEngine& engine) {
  return "a bundle of " + digits(static_cast<std::int64_t>(form.bundle.layers.size())) +
         " layers with the command for " + engine.name + " " + engine.release;
}

std::vector<std::string> write_with_card(const std::string& card, const fs::path& directory,
                                         const ExportOptions& options) {
  AtomicDirectory target(directory, options.overwrite, checksummed_directory());
  write_file_atomic(target.path() / kCardName, card);
  std::vector<std::string> names = {kCardName};
  for (std::string& name : copy_bundle(options.bundle, target.path())) names.push_back(std::move(name));
  names = write_checksums(target.path(), names);
  target.commit();
  return names;
}

}  // namespace

std::optional<std::string> vllm_unsupported(const ExportFormat& format, const Bundle& bundle) {
  const PluginEngine& engine = format.id == "vllm" ? kVllmEngine : kSglangEngine;
  for (const LayerTransform& layer : bundle.layers) {
    if (auto reason = unserved_layer(layer, bundle.quant_group, engine)) return reason;
  }
  if (bundle.encoder == "feedback") {
    return "the bundle is encoded with feedback, which no kernel does token by token; fit with --encoder search, or "
           "use "
           "format transformers";
  }
  const std::int64_t window =
      kWindowPage * (window_pages(bundle.windows.sink) + window_pages(bundle.windows.recent + 1 + kRingSlack));
  if (window > kVllmMostWindow) {
    return "the bundle has BF16 windows of " + digits(bundle.windows.sink) + " and " + digits(bundle.windows.recent) +
           " tokens, more than the decode kernel holds (" + digits(kVllmMostWindow) +
           " in whole pages); fit with shorter " + "--windows";
  }
  const Json& query_heads = bundle.model.contains("query_heads") ? bundle.model["query_heads"] : Json();
  const std::int64_t kv_heads = bundle.layers.empty() ? 0 : bundle.layers.front().kv_heads;
  if (!query_heads.is_number_integer()) return std::nullopt;
  const auto reason = vllm_group_refusal(query_heads.get<std::int64_t>(), kv_heads);
  return reason ? std::optional("the model has " + *reason) : std::nullopt;
}

void vllm_check_model(const Checkpoint& model, const Bundle&) {
  if (const auto reason = vllm_unsupported_model(model.config())) throw InputError(*reason);
}

void sglang_plugin_check_model(const Checkpoint& model, const Bundle&) {
  if (const auto reason = vllm_unsupported_model(model.config(), kSglangEngine)) throw InputError(*reason);
}

std::string vllm_plan(const ServedForm& form, const ExportOptions&) { return plan_for(form, kVllmEngine); }

std::string sglang_plugin_plan(const ServedForm& form, const ExportOptions&) { return plan_for(form, kSglangEngine); }

std::vector<std::string> write_vllm(const ExportFormat&, const ServedForm& form, const fs::path& directory,
                                    const ExportOptions& options) {
  return write_with_card(vllm_card(form, options), directory, options);
}

std::vector<std::string> write_sglang_plugin(const ExportFormat&, const ServedForm& form, const fs::path& directory,
                                             const ExportOptions& options) {
  return write_with_card(sglang_card(form, options), directory, options);
}

}  // namespace oscar
