#include "checkpoint/model_location.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <set>
#include <vector>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "checkpoint/shard_index.h"

namespace oscar {
namespace {

// A valid component of a repository or revision name on the Hub: letters, digits, '.', '_', '-', but not "." or "..".
// Nothing may leave the cache directory.
bool is_plain_component(const std::string& text) {
  if (text.empty() || text.size() > 200 || text == "." || text == "..") return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == '/') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool all_plain(const std::vector<std::string>& parts) {
  return std::all_of(parts.begin(), parts.end(), is_plain_component);
}

// "name" or "org/name" by the Hub's rules, which also forbid "--" and ".." (the cache uses "--" for '/').
bool is_repository_name(const std::string& model) {
  const std::vector<std::string> parts = split(model);
  if (parts.size() > 2 || model.size() > 96 || !all_plain(parts)) return false;
  for (const std::string& part : parts) {
    if (part.front() == '.' || part.front() == '-' || part.back() == '.' || part.back() == '-') return false;
  }
  return model.find("--") == std::string::npos && model.find("..") == std::string::npos;
}

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

fs::path expand_home(const std::string& path) {
  const char* home = environment("HOME");
  if (home != nullptr && (path == "~" || path.starts_with("~/"))) return fs::path(home + path.substr(1));
  return path;
}

fs::path hub_cache() {
  // The order of huggingface_hub; the second is its older name.
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const char* hub = environment(name)) return expand_home(hub);
  }
  if (const char* home = environment("HF_HOME")) return expand_home(home) / "hub";
  if (const char* cache = environment("XDG_CACHE_HOME")) return expand_home(cache) / "huggingface" / "hub";
  return expand_home("~/.cache/huggingface/hub");
}

std::string download_command(const std::string& model, const std::string& revision) {
  return "hf download " + model + (revision.empty() ? "" : " --revision " + revision);
}

// The snapshot folder of a revision: the revision itself if it is a snapshot, otherwise the content of refs/<revision>.
std::string resolve_commit(const fs::path& repository, const std::string& revision) {
  if (is_plain_component(revision) && folder_exists(repository / "snapshots" / revision)) return revision;
  const fs::path ref = repository / "refs" / revision;
  if (!path_exists(ref) || folder_exists(ref)) return "";
  std::string commit = read_file(ref, 4096);
  while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back())) != 0) commit.pop_back();
  if (!is_plain_component(commit)) {
    throw InputError(ref.string() + ": holds " + quote_name(commit) + ", expected a commit hash; the cache is damaged");
  }
  return commit;
}

ModelLocation locate_in_cache(const std::string& model, const std::string& revision, const std::string& file) {
  const fs::path hub = hub_cache();
  std::string folder = "models--";
  for (const char c : model) folder += c == '/' ? std::string("--") : std::string(1, c);
  const fs::path repository = hub / folder;
  const std::string wanted = revision.empty() ? "main" : revision;
  if (!folder_exists(repository)) {
    throw InputError(model + ": is neither a directory nor in the Hugging Face cache " + hub.string() +
                     "; fetch it with: " + download_command(model, revision));
  }
  const std::string commit = resolve_commit(repository, wanted);
  const fs::path snapshot = repository / "snapshots" / commit;
  if (commit.empty() || !folder_exists(snapshot)) {
    throw InputError(model + ": the revision " + quote_name(wanted) + " is not in the Hugging Face cache " +
                     hub.string() + "; fetch it with: " + download_command(model, revision));
  }
  if (!path_exists(snapshot / file)) {  // a partial download, or a link whose blob is missing
    throw InputError(model + ": the cached snapshot " + snapshot.string() + " has no " + file +
                     "; complete it with: " + download_command(model, revision));
  }
  return {snapshot, model, commit};
}

}  // namespace

std::string gguf_advice(const fs::path& path) {
  const auto is_gguf = [](const fs::path& file) { return file.extension() == ".gguf"; };
  std::error_code ec;
  const bool held = std::any_of(fs::directory_iterator(path, ec), fs::directory_iterator(), is_gguf);
  return !held && !is_gguf(path) ? ""
                                 : "; GGUF is not read: load it in transformers by from_pretrained(FOLDER, "
                                   "gguf_file=FILE), and pass the folder that save_pretrained() writes";
}

ModelLocation locate_model(const std::string& model, const std::string& revision) {
  if (model.empty()) throw InputError("the model name is empty; pass a directory or org/name");
  if (model.find('\0') != std::string::npos)
    throw InputError("the model name " + quote_name(model) + " holds a NUL byte");
  if (folder_exists(model)) {
    if (!revision.empty()) {
      throw InputError(model + ": is a directory, which has no revision " + quote_name(revision) +
                       "; drop --revision or name the model as org/name");
    }
    if (!path_exists(fs::path(model) / "config.json")) {
      if (path_exists(fs::path(model) / "adapter_config.json")) {
        throw InputError(model +
                         ": holds an adapter and no model; merge it into its model (merge_and_unload() of peft), save "
                         "that with its tokenizer, and pass that directory");
      }
      throw InputError(model + ": has no config.json; expected the directory of a Hugging Face checkpoint" +
                       gguf_advice(model));
    }
    std::error_code ec;
    fs::path absolute = fs::absolute(model, ec).lexically_normal();
    if (!absolute.has_filename()) absolute = absolute.parent_path();  // "dir/" and "dir/."
    return {model, absolute.filename().string(), ""};
  }
  std::error_code ec;
  if (fs::is_regular_file(model, ec)) {
    throw InputError(escape_text(model) +
                     ": is a file, expected the directory of a Hugging Face checkpoint (the folder with config.json)" +
                     gguf_advice(model));
  }
  return locate_repository(model, revision, "config.json");
}

ModelLocation locate_repository(const std::string& name, const std::string& revision, const std::string& file) {
  if (!is_repository_name(name)) {
    throw InputError(quote_name(name) + " is neither a directory nor a model name of the form org/name");
  }
  if (!revision.empty() && !all_plain(split(revision))) {
    throw InputError("the revision " + quote_name(revision) + " is no branch, tag or commit name");
  }
  return locate_in_cache(name, revision, file);
}

std::vector<fs::path> checkpoint_files(const ModelLocation& location) {
  constexpr const char* kIndex = "model.safetensors.index.json";
  std::set<std::string> names = {"config.json",
                                 "generation_config.json",
                                 "model.safetensors",
                                 kIndex,
                                 "tokenizer.json",
                                 "tokenizer_config.json",
                                 "chat_template.jinja",
                                 "chat_template.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json"};
  std::error_code ec;
  const fs::path index = location.directory / kIndex;
  if (fs::is_regular_file(index, ec)) {
    const std::string text = read_file(index, std::uint64_t{128} << 20);
    for (const auto& [tensor, file] : parse_shard_index(text, index.string())) names.insert(file);
  }
  std::vector<fs::path> files;
  for (const std::string& name : names) files.push_back(location.directory / name);
  return files;
}

}  // namespace oscar
