// How long the layers of a model take on this machine, from short timed runs of one layer of each kind: full attention,
// a window, linear attention. What a layer takes is then
//   seconds(T) = a T + b P(T),   P(T) the query-key pairs that the layer's attention sees in T tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "model/decoder.h"

namespace oscar {

class LayerTimer {
 public:
  // Layers of one kind are alike except for their weights.
  struct Kind {
    std::int64_t span;  // of the window; 0: none
    bool caches, linear;
    auto operator<=>(const Kind&) const = default;
  };
  struct Rate {
    double token = 0.0, pair = 0.0;  // a and b
  };
  using Rates = std::map<Kind, Rate>;

  // tokens: of the longer run; the shorter has a quarter. Loads one layer at a time.
  LayerTimer(const Checkpoint& checkpoint, const DecoderOptions& options, std::int64_t tokens);
  // A length at which a GPU is busy, and which takes a CPU about a second.
  static std::int64_t usual_tokens(const ModelConfig& model, at::Device device);

  Decoder& decoder() { return decoder_; }
  std::int64_t tokens() const { return tokens_; }
  std::vector<std::int32_t> ids(std::int64_t count) const;  // different ones

  // seconds: of each part of the work of a layer on that many tokens. It is called for both lengths and all kinds.
  // Returns the rates of each part.
  std::vector<Rates> rates(const std::function<std::vector<double>(std::int64_t layer, std::int64_t tokens)>& seconds);
  // What the work takes in all layers, for one sequence.
  double all_layers(const Rates& rates, std::int64_t tokens) const;
  // The sum over all layers of what seconds(layer) says for the first one of each kind.
  double all_layers(const std::function<double(std::int64_t layer)>& seconds) const;
  // What reading the weights of all layers adds to `computing` seconds of them: on a GPU a layer is copied during the
  // one before it.
  double loading(double computing);

 private:
  std::int64_t tokens_;
  Decoder decoder_;
  std::vector<Kind> kinds_;   // [layers]
  double layer_load_ = -1.0;  // seconds of reading one layer; negative: not measured yet
};

}  // namespace oscar
