// What lib/checkpoint reads, as text for the Python oracles.
//   checkpoint_tool dump FILE          one line for each tensor: name, dtype, shape, sha256 of the data
//   checkpoint_tool copy FILE OUT      reads a safetensors file and writes it again
//   checkpoint_tool check FILE...      "ok" or "refused: <reason>" for each file
//   checkpoint_tool config FILE...     config.json as parsed, one JSON line for each file
//   checkpoint_tool open DIR [LIKE]    fingerprint (in the version of LIKE) and tensor names of a checkpoint
//   checkpoint_tool locate MODEL [REV] the directory, name and revision found
#include <iostream>
#include <string>

#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "tool_main.h"

namespace oscar {
namespace {

Json to_json(const ModelConfig& c) {
  const RopeConfig& r = c.rope;
  const char* const types[] = {"default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional"};
  return Json{{"architecture", c.architecture},
              {"model_type", c.model_type},
              {"num_hidden_layers", c.layers},
              {"hidden_size", c.hidden},
              {"intermediate_size", c.intermediate},
              {"vocab_size", c.vocabulary},
              {"num_attention_heads", c.query_heads},
              {"num_key_value_heads", c.kv_heads},
              {"head_dim", c.head_dim},
              {"max_position_embeddings", c.max_position},
              {"rms_norm_eps", c.rms_eps},
              {"tie_word_embeddings", c.tie_embeddings},
              {"qkv_bias", c.qkv_bias},
              {"output_bias", c.output_bias},
              {"mlp_bias", c.mlp_bias},
              {"qk_norm", c.qk_norm},
              {"windows", c.sliding_window},
              {"bos", c.bos_token},
              {"eos", c.eos_tokens},
              {"dtype", c.torch_dtype},
              {"rope",
               {{"rope_type", types[static_cast<int>(r.type)]},
                {"rope_theta", r.theta},
                {"factor", r.factor},
                {"low_freq_factor", r.low_freq_factor},
                {"high_freq_factor", r.high_freq_factor},
                {"original_max_position_embeddings", r.original_max_position},
                {"beta_fast", r.beta_fast},
                {"beta_slow", r.beta_slow},
                {"attention_factor", r.attention_factor},
                {"short_factor", r.short_factor},
                {"long_factor", r.long_factor},
                {"truncate", r.truncate},
                {"partial", r.partial}}}};
}

void dump(const TensorView& t) {
  Sha256 hash;
  hash.update(t.data.data(), t.data.size());
  std::cout << Json(t.name).dump() << " " << t.type_text() << " " << t.shape_text() << " " << hash.hex() << "\n";
}

int run(const Arguments& args) {
  const std::string command = args.empty() ? "" : args[0];
  if (command == "dump" && args.size() == 2) {
    const SafetensorsFile file = SafetensorsFile::open(args[1]);
    std::cout << Json(file.metadata()).dump() << "\n";
    for (const TensorView& t : file.tensors()) dump(t);
  } else if (command == "copy" && args.size() == 3) {
    const SafetensorsFile file = SafetensorsFile::open(args[1]);
    write_safetensors(args[2], file.tensors(), file.metadata());
  } else if (command == "check") {
    print_each(args, [](const std::string& file) {
      SafetensorsFile::open(file);
      return "ok";
    });
  } else if (command == "config") {
    print_each(args, [](const std::string& file) { return to_json(parse_model_config(read_json(file), file)).dump(); });
  } else if (command == "open" && args.size() >= 2) {
    const Checkpoint checkpoint = Checkpoint::open(locate_model(args[1]));
    std::cout << checkpoint.fingerprint() << "\n";
    for (const std::string& name : checkpoint.names()) std::cout << name << "\n";
  } else if (command == "locate" && args.size() >= 2) {
    const ModelLocation found = locate_model(args[1], args.size() > 2 ? args[2] : "");
    std::cout << found.directory.string() << "\n" << found.name << "\n" << found.revision << "\n";
  } else {
    std::cerr << "usage: checkpoint_tool dump|copy|check|config|open|locate ...\n";
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::tool_main(argc, argv, oscar::run); }
