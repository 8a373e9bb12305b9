#include "export/writers.h"

#include <sstream>

#include "base/errors.h"
#include "base/shell.h"
#include "bundle/model_card.h"
#include "export/bundle_copy.h"
#include "export/engine_limits.h"
#include "export/export_card.h"
#include "kernels/common/latent_page.h"

namespace oscar {
namespace {

std::string digits(std::int64_t n) { return std::to_string(n); }

std::int64_t window_pages(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

std::optional<std::string> unserved_layer(const LayerTransform& layer, std::int64_t group, const PluginEngine& engine) {
  const std::string name = "layer " + digits(layer.layer) + " of the bundle has ";
  const std::int64_t d = layer.head_dim;
  if (const auto reason = head_limit(engine, d)) return name + *reason;
  const auto unread = unread_codes(layer.key.code(d, group), layer.value.code(d, group), layer.key.rotated_mean);
  if (!unread) return std::nullopt;
  return name + unread->what + ", which the decode kernel does not read; " + unread->fix +
         ", or use format transformers";
}

// As latent_unsupported() of python/oscar_kv/cache/latent_kv.py.
std::optional<std::string> unserved_latent(const LayerTransform& layer, std::int64_t rope_dim) {
  const std::string name = "layer " + digits(layer.layer) + " of the bundle has ";
  if (layer.head_dim != kLatentChannels || rope_dim != kRopeChannels) {
    return name + "latents of " + digits(layer.head_dim) + " channels and " + digits(rope_dim) +
           " with RoPE; the kernels have " + digits(kLatentChannels) + " and " + digits(kRopeChannels);
  }
  if (!layer.key.widths.empty()) return std::nullopt;
  return name + "codes of layout uniform, and the kernels of latent attention have layout blocks; fit with --method " +
         "waterfill";
}

// The command in the card. sharing: requests share prefixes.
std::string serve_command(const PluginEngine& engine, const Bundle& bundle, const std::string& model, bool sharing) {
  const std::int64_t distance = longest_distance(bundle);
  return "```console\nOSCAR_KV_BUNDLE=\"$PWD\"/" + std::string(kBundleFolder) + " " + engine.command + " " +
         shell_word(model) + " \\\n  " + engine.options +
         (distance > 0 ? std::string(" ") + engine.length + " " + digits(distance + 1) : "") +
         (sharing ? "" : std::string(" \\\n  ") + engine.no_sharing) + "\n```\n\n";
}

std::string serve_section(const PluginEngine& engine, const Bundle& bundle, const std::string& model) {
  const bool shares = bundle.windows.sink % kPageTokens == 0;
  std::ostringstream out;
  out << "## Serve\n\nThe Python package oscar-kv (the wheel that `scripts/wheel` builds; it is on no package index) "
         "is a plugin of "
      << engine.name << " " << engine.releases << ", which finds it by itself. In this folder:\n\n";
  if (shares) {
    out << serve_command(engine, bundle, model, true) << "Requests share prefixes (" << engine.sharing
        << "), which is the engine's default. This command keeps them apart:\n\n";
  }
  out << serve_command(engine, bundle, model, false);
  if (!shares) {
    out << "With " << engine.sharing
        << " the sink must be whole pages (`oscar-fit --windows 64,256`). This bundle has a "
        << "sink of " << bundle.windows.sink << " tokens.\n\n";
  }
  if (bundle.latent()) {
    out << "Latent attention needs " << engine.name << " " << engine.release << ". ";
  }
  if (longest_distance(bundle) > 0) {
    out << "`" << engine.length << "` is the longest context of the calibration; longer ones were not seen. ";
  }
  const std::int64_t heads = bundle.layers.empty() ? 0 : bundle.layers.front().kv_heads;
  if (heads > 1) {
    out << "On several GPUs add `" << engine.ranks << " N`, where N divides the " << heads << " KV heads. ";
  }
  return out.str();
}

std::string engine_card(const ServedForm& form, const ExportOptions& options, const PluginEngine& engine) {
  const std::string model = served_model(form.bundle, options.model_path);
  return card_head(form.bundle, std::string("2-bit KV cache for ") + engine.name) +
         serve_section(engine, form.bundle, model) + unknown_folder_note(model) + "The adapter was run in " +
         engine.name + " on " + engine.gpus + ". " + engine.notes +
         " `SHA256SUMS` is checked with `sha256sum -c`.\n\n" +
         measured_section(form.format, options.report ? &*options.report : nullptr) + "\n" +
         provenance_section(form.bundle);
}

const PluginEngine& engine_of(const std::string& format) { return find_export_format(format)->plugin(); }

}  // namespace

std::optional<std::string> engine_unsupported(const ExportFormat& format, const Bundle& bundle) {
  for (const LayerTransform& layer : bundle.layers) {
    auto reason = bundle.latent() ? unserved_latent(layer, bundle.rope_dim())
                                  : unserved_layer(layer, bundle.quant_group, format.plugin());
    if (reason) return reason;
  }
  const std::int64_t window =
      kPageTokens * (window_pages(bundle.windows.sink) + window_pages(bundle.windows.recent + 1 + kEngineRingSlack));
  if (window > kEngineMostWindow) {
    return "the bundle has BF16 windows of " + digits(bundle.windows.sink) + " and " + digits(bundle.windows.recent) +
           " tokens, more than the decode kernel holds (" + digits(kEngineMostWindow) +
           " in whole pages); fit with shorter " + "--windows";
  }
  const Json& query_heads = bundle.model.contains("query_heads") ? bundle.model["query_heads"] : Json();
  if (!query_heads.is_number_integer() || bundle.layers.empty() || bundle.latent()) return std::nullopt;
  const LayerTransform& layer = bundle.layers.front();
  const auto reason = group_limit(query_heads.get<std::int64_t>(), layer.kv_heads, layer.head_dim);
  return reason ? std::optional("the model has " + *reason) : std::nullopt;
}

void engine_check_model(const ExportFormat& format, const Checkpoint& model, const Bundle&) {
  if (const auto reason = unsupported_model(format.plugin(), model.config())) throw InputError(*reason);
}

std::optional<std::string> engine_bf16_reason(const ExportFormat& format, const ModelConfig& model,
                                              std::int64_t layer) {
  return bf16_reason(format.plugin(), model, layer);
}

std::string engine_plan(const ServedForm& form, const ExportOptions&) {
  const PluginEngine& engine = engine_of(form.format);
  return "a bundle of " + digits(static_cast<std::int64_t>(form.bundle.layers.size())) +
         " layers with the command for " + engine.name + " " + engine.release;
}

std::vector<std::string> write_engine(const ExportFormat& format, const ServedForm& form, const fs::path& directory,
                                      const ExportOptions& options) {
  AtomicDirectory target(directory, options.overwrite, checksummed_directory());
  write_file_atomic(target.path() / kCardName, engine_card(form, options, format.plugin()));
  std::vector<std::string> names = {kCardName};
  for (std::string& name : copy_bundle(options.bundle, target.path())) names.push_back(std::move(name));
  names = write_checksums(target.path(), names);
  target.commit();
  return names;
}

}  // namespace oscar
