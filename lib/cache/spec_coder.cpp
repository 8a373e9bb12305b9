// Codes of other papers' methods: MethodEngine. They have no pages.
#include <ATen/ATen.h>

#include "cache/kv_method.h"
#include "cache/rows_coder.h"
#include "methods/engine.h"

namespace oscar {
namespace {

std::string group_text(const SideCode& s, std::int64_t head_dim) {
  return std::to_string(s.group > 0 ? s.group : head_dim);
}

class SpecCoder : public RowsCoder {
 public:
  SpecCoder(const MethodSpec& description, const ModelConfig& model) : engine_(description, model) {}

  std::string settings(const KvMethod&, const ModelConfig& model) const override {
    return "groups of " + by_side(group_text(engine_.side(Side::kKey), model.head_dim),
                                  group_text(engine_.side(Side::kValue), model.head_dim));
  }
  double bits_per_element(const KvMethod&) const override { return engine_.bits_per_element(); }
  double bits_per_element_at(const KvMethod&, std::int64_t context) const override {
    return engine_.bits_per_element_at(context);
  }
  std::uint64_t held_bytes(const KvMethod&, const ModelConfig&, std::int64_t context) const override {
    return engine_.allocated_bytes(context);
  }
  at::Tensor code(const KvMethod&, std::int64_t, Side side, const at::Tensor& rows) const override {
    return engine_.reconstruct(side, rows);
  }
  std::string no_pages() const override { return "has no pages"; }
  std::optional<KvCacheSpec> pages(const KvMethod&, const ModelConfig&) const override { return std::nullopt; }

 private:
  MethodEngine engine_;
};

}  // namespace

std::shared_ptr<const RowsCoder> spec_coder(const MethodSpec& description, const ModelConfig& model) {
  return std::make_shared<const SpecCoder>(description, model);
}

}  // namespace oscar
