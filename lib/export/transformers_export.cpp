#include "export/writers.h"

#include <sstream>

#include "base/hash.h"
#include "bundle/model_card.h"
#include "export/bundle_copy.h"
#include "export/export_card.h"

namespace oscar {
namespace {

constexpr const char* kGenerate = "custom_generate/generate.py";

// There is no requirements.txt, and the import is inside a try. transformers would otherwise suggest installing the
// package under a name that anyone may register. `model` is not among the other parameters: from_pretrained() binds it
// by name, and users pass token ids by position.
std::string generate_py(const std::string& tool_version, const std::string& manifest_sha256) {
  return "# Written by oscar-export " + tool_version +
         ". generate() of transformers with the 2-bit KV cache of the folder oscar_bundle.\n"
         "try:\n"
         "    from oscar_kv.hf.generate import generate_with\n"
         "except ImportError as error:\n"
         "    raise ImportError(\"the 2-bit KV cache needs the Python package of the OSCAR toolchain, which is on no "
         "package index: \"\n"
         "                      \"install the wheel that its scripts/wheel builds\") from error\n"
         "\n"
         "MANIFEST_SHA256 = \"" +
         manifest_sha256 +
         "\"\n"
         "\n"
         "\n"
         "def generate(*inputs, model, oscar_bundle=None, **arguments):\n"
         "    \"\"\"As model.generate(); oscar_bundle: that folder, where it is not beside the model's "
         "config.json.\"\"\"\n"
         "    return generate_with(model, MANIFEST_SHA256, oscar_bundle, inputs, arguments)\n";
}

std::string card(const ServedForm& form, const ExportOptions& options) {
  std::ostringstream out;
  out << card_head(form.bundle, "2-bit KV cache for transformers")
      << "## Generate\n\n"
         "The Python package oscar-kv serves the bundle (the wheel that `scripts/wheel` builds; it is on no package "
         "index). Copy `custom_generate` and `oscar_bundle` into the model's directory or repository; a model that is "
         "loaded from there has the cache in its `generate()`:\n\n"
         "```python\nmodel = AutoModelForCausalLM.from_pretrained(DIRECTORY, trust_remote_code=True)\n"
         "model.generate(ids, max_new_tokens=100)\n```\n\n"
         "A model from elsewhere uses it for one call, with both paths as they are on your machine:\n\n"
         "```python\nmodel.generate(ids, max_new_tokens=100, trust_remote_code=True,\n"
         "               custom_generate=\"serving\", oscar_bundle=\"serving/oscar_bundle\")\n```\n\n"
         "`oscar_kv.attach(model, \"serving/oscar_bundle\")` does the same without remote code. `SHA256SUMS` is "
         "checked with `sha256sum -c`.\n\n";
  return out.str() + measured_section(form.format, options.report ? &*options.report : nullptr) + "\n" +
         provenance_section(form.bundle);
}

}  // namespace

std::string transformers_plan(const ServedForm& form, const ExportOptions&) {
  return "a bundle of " + std::to_string(form.bundle.layers.size()) + " layers with a generate() of its own";
}

std::vector<std::string> write_transformers(const ExportFormat&, const ServedForm& form, const fs::path& directory,
                                            const ExportOptions& options) {
  AtomicDirectory target(directory, options.overwrite, checksummed_directory());
  const auto write = [&target](const std::string& name, const std::string& text) {
    fs::create_directories((target.path() / name).parent_path());
    write_file_atomic(target.path() / name, text);
  };
  std::vector<std::string> names = copy_bundle(options.bundle, target.path());
  write(kCardName, card(form, options));
  write(kGenerate,
        generate_py(options.tool_version, sha256_file(target.path() / std::string(kBundleFolder) / kManifestName)));
  names.insert(names.end(), {kCardName, kGenerate});
  names = write_checksums(target.path(), names);
  target.commit();
  return names;
}

}  // namespace oscar
