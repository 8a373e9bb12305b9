// A statistics file: metadata and tensors, as fit, merge and show read them.
#include <ATen/ATen.h>
#include <unistd.h>

#include "base/errors.h"
#include "fuzz/fuzz_target.h"
#include "statistics/random_statistics.h"
#include "statistics/shard_merge.h"
#include "statistics/show.h"
#include "statistics/statistics_format.h"

namespace oscar::fuzz {

std::vector<std::string> seeds() {
  RandomRows small;
  small.layers = 1, small.query_heads = 2, small.kv_heads = 1, small.head_dim = 2, small.tokens = 6, small.rows = 3;
  Statistics s = random_statistics(small);
  s.metadata["model"] = {{"revision", ""}};
  Json& prompts = s.metadata["parts"][0]["prompts"];
  prompts["files"] = {"p.jsonl"};
  prompts["documents"] = {"0123456789abcdef"};
  s.metadata["parts"][0]["options"] = {{"far_pairs", "none"}};
  const fs::path path = fs::temp_directory_path() / ("oscar-fuzz-statistics-" + std::to_string(::getpid()));
  save_statistics(s, path);
  const std::string whole = read_file(path);
  Json& part = s.metadata["parts"][0];
  part["longest_sequence"] = 6;
  part["shard"] = {{"index", 1}, {"of", 2}, {"tokens", 6}, {"sequences", 1}};
  save_statistics(s, path);
  const std::string shard = read_file(path);
  s.rope_dim = 4;
  save_statistics(s, path);
  const std::string latent = read_file(path);
  fs::remove(path);
  return {whole, shard, latent};
}

namespace {

void merge_twice(const Statistics& shard) {
  try {
    merge_shards({shard, shard}, {"a", "b"});
  } catch (const InputError&) {
    return;
  }
  require(false, "a shard that is there twice is refused");
}

}  // namespace

void read_input(std::string_view bytes) {
  try {
    const Statistics s = read_statistics(SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "fuzz.safetensors"));
    if (s.layers.size() > 4 || s.head_dim > 64) return;
    show_json(s);
    show_text(s, true);
    if (is_shard(s)) return merge_twice(s);
    require(s.layers[0].q_gram.isfinite().all().item<bool>(), "accepted sums are finite");
    require(merge_statistics({s, s}, {.same_prompts = true}).tokens == 2 * s.tokens, "tokens add up");
  } catch (const NumericalError& e) {  // NaN and infinity have an exit code of their own
    require(std::string_view(e.what()).find('\n') == std::string_view::npos, "an error is one line");
  }
}

}  // namespace oscar::fuzz
