// report.json, format version 1: schemas/report.schema.json. Members have a fixed order and numbers are rounded to nine
// significant digits, so equal runs give byte-identical files.
#include "base/json.h"
#include "report/number_text.h"
#include "report/report.h"

namespace oscar {
namespace {

constexpr int kDigits = 9;

Json number(double value) { return rounded(value, kDigits); }

Json optional_number(const std::optional<double>& value) { return value ? number(*value) : Json(nullptr); }

Json optional_bool(const std::optional<bool>& value) { return value ? Json(*value) : Json(nullptr); }

Json interval(const std::optional<Interval>& value) {
  return value ? Json::array({number(value->low), number(value->high)}) : Json(nullptr);
}

Json model_json(const ModelFacts& m) {
  Json json = {{"name", m.name},         {"fingerprint", m.fingerprint}, {"architecture", m.architecture},
               {"layers", m.layers},     {"query_heads", m.query_heads}, {"kv_heads", m.kv_heads},
               {"head_dim", m.head_dim}, {"vocabulary", m.vocabulary},   {"max_position", m.max_position}};
  if (m.rope_dim > 0) json["rope_dim"] = m.rope_dim;
  return json;
}

Json seen_json(const std::optional<SeenText>& s) {
  if (!s) return nullptr;
  return {{"seen", s->seen()},
          {"document", s->document.empty() ? Json(nullptr) : Json(s->document)},
          {"compared", s->compared},
          {"shared", s->shared}};
}

Json clip_json(const BundleFacts& b) {
  const auto ratios = [](const std::vector<double>& values) {
    Json list = Json::array();
    for (const double rho : values) list.push_back(number(rho));
    return list;
  };
  Json json = {
      {"source", b.clip_source}, {"key", optional_number(b.key_clip)}, {"value", optional_number(b.value_clip)}};
  if (b.layer_clips.empty()) return json;
  json["layers"] = Json::array();
  for (const LayerClip& l : b.layer_clips) {
    json["layers"].push_back({{"layer", l.layer}, {"key", ratios(l.key)}, {"value", ratios(l.value)}});
  }
  return json;
}

Json prediction_json(const std::optional<PredictedKl>& p) {
  if (!p) return nullptr;
  return {{"kl", number(p->kl)},
          {"standard_error", number(p->error)},
          {"context", p->context},
          {"windows", {{"sink", p->sink}, {"recent", p->recent}}}};
}

Json bundle_json(const BundleFacts& b) {
  Json files = Json::object();
  for (const auto& [name, hash] : b.sha256) files[name] = hash;
  return {{"row", b.row},
          {"kind", b.kind},
          {"source", b.source},
          {"method", b.method},
          {"scope", b.scope},
          {"encoder", b.encoder},
          {"model_fingerprint", b.model_fingerprint.empty() ? Json(nullptr) : Json(b.model_fingerprint)},
          {"fingerprint_matches", b.fingerprint_matches},
          {"longest_distance", b.longest_distance > 0 ? Json(b.longest_distance) : Json(nullptr)},
          {"clip", clip_json(b)},
          {"served_as", {{"format", b.served_as}, {"changes", b.served_changes}}},
          {"prediction", prediction_json(b.prediction)},
          {"sha256", files},
          {"calibration_text", seen_json(b.calibration)}};
}

Json served_json(const std::optional<ServedFacts>& s) {
  if (!s) return nullptr;
  return {{"url", s->url}, {"engine", s->runs}, {"model", s->model}, {"generated", s->generated}};
}

Json scoring_json(const VerifyReport& r) {
  return {{"rule", "positions whose query sees at least one quantized key (position >= sink + recent)"},
          {"first_position", r.scoring.first_position},
          {"sequences", r.scoring.sequences},
          {"tokens", r.scoring.tokens},
          {"fraction", number(r.scoring.fraction)},
          {"unused_tokens", r.scoring.unused_tokens}};
}

Json kl_json(const KlMetrics& kl) {
  Json by_sequence = Json::array();
  for (const double mean : kl.by_sequence) by_sequence.push_back(number(mean));
  return {{"by_sequence", by_sequence},  {"mean", number(kl.mean)}, {"stderr", number(kl.standard_error)},
          {"ci", interval(kl.interval)}, {"min", number(kl.min)},   {"p001", number(kl.p001)},
          {"p01", number(kl.p01)},       {"p05", number(kl.p05)},   {"p10", number(kl.p10)},
          {"median", number(kl.median)}, {"p90", number(kl.p90)},   {"p95", number(kl.p95)},
          {"p99", number(kl.p99)},       {"p999", number(kl.p999)}, {"p999_ci", interval(kl.p999_interval)},
          {"max", number(kl.max)}};
}

Json delta_p_json(const DeltaPMetrics& d) {
  return {{"mean", number(d.mean)},     {"stderr", number(d.standard_error)},
          {"rms", number(d.rms)},       {"rms_stderr", number(d.rms_error)},
          {"min", number(d.min)},       {"p001", number(d.p001)},
          {"p01", number(d.p01)},       {"p05", number(d.p05)},
          {"p10", number(d.p10)},       {"p25", number(d.p25)},
          {"median", number(d.median)}, {"p75", number(d.p75)},
          {"p90", number(d.p90)},       {"p95", number(d.p95)},
          {"p99", number(d.p99)},       {"p999", number(d.p999)},
          {"max", number(d.max)}};
}

Json texts_json(const std::vector<TextQuality>& texts) {
  Json list = Json::array();
  for (const TextQuality& t : texts) {
    const QualityMetrics& q = t.quality;
    list.push_back({{"text", t.text},
                    {"sequences", t.sequences},
                    {"tokens", q.tokens},
                    {"ppl", number(q.ppl)},
                    {"ppl_ratio", number(q.ppl_ratio)},
                    {"ppl_ratio_ci", interval(q.ppl_ratio_interval)},
                    {"kl", kl_json(q.kl)},
                    {"same_top1", number(q.same_top1)},
                    {"same_top1_ci", interval(q.same_top1_interval)}});
  }
  return list;
}

Json head_error_json(const HeadError& e) {
  return {{"k_logit_error", number(e.k_logit)},         {"k_logit_correlation", number(e.k_logit_correlation)},
          {"attention_kl", number(e.attention_kl)},     {"attention_output_error", number(e.attention_output)},
          {"sink_mass_lost", number(e.sink_mass_lost)}, {"recent_mass_lost", number(e.recent_mass_lost)}};
}

Json layers_json(const std::vector<LayerError>& layers) {
  Json list = Json::array();
  for (const LayerError& l : layers) {
    Json layer = head_error_json(l.mean);
    layer["layer"] = l.layer;
    layer["projected_output_error"] = number(l.projected_output);
    layer["heads"] = Json::array();
    for (const HeadError& h : l.heads) {
      Json head = head_error_json(h);
      head["head"] = h.head;
      layer["heads"].push_back(std::move(head));
    }
    list.push_back(std::move(layer));
  }
  return list;
}

Json task_json(const TaskScore& t) {
  Json depths = Json::array();
  for (const DepthScore& d : t.depths) {
    depths.push_back({{"from", number(d.from)}, {"to", number(d.to)}, {"n", d.prompts}, {"solved", d.solved}});
  }
  return {{"score", optional_number(t.score)},
          {"n", t.n},
          {"ci", interval(t.n > 0 ? std::optional(t.interval) : std::nullopt)},
          {"solved", t.solved},
          {"prompts", t.prompts},
          {"references", t.references},
          {"depths", depths}};
}

Json tasks_json(const std::vector<TaskScore>& tasks) {
  Json object = Json::object();
  for (const TaskScore& t : tasks) object[t.task][std::to_string(t.length)] = task_json(t);
  return object;
}

Json positions_json(const std::vector<PositionBucket>& buckets) {
  Json list = Json::array();
  for (const PositionBucket& b : buckets) {
    list.push_back({{"from", b.from}, {"to", b.to}, {"tokens", b.tokens}, {"kl", number(b.kl)}});
  }
  return list;
}

Json growth_json(const MethodReport& m) {
  const std::optional<KlGrowth> g = m.quantized ? kl_growth(m.by_position) : std::nullopt;
  if (!g) return nullptr;
  return {{"ratio", number(g->ratio())},
          {"early", {{"kl", number(g->early)}, {"tokens", g->early_tokens}}},
          {"late", {{"kl", number(g->late)}, {"tokens", g->late_tokens}}}};
}

Json recall_json(const std::optional<RecallMetrics>& r) {
  if (!r) return nullptr;
  return {{"tokens", r->tokens},
          {"bf16", number(r->baseline)},
          {"bf16_stderr", number(r->baseline_error)},
          {"share", number(r->share)},
          {"stderr", number(r->error)}};
}

Json ratios_json(const std::vector<CacheRatio>& ratios) {
  Json list = Json::array();
  for (const CacheRatio& r : ratios) list.push_back({{"context", r.context}, {"ratio", number(r.ratio)}});
  return list;
}

Json method_json(const MethodReport& m) {
  const QualityMetrics& q = m.quality;
  return {{"id", m.id},
          {"path", m.path},
          {"comparison", m.comparison},
          {"settings", m.settings},
          {"source", m.source},
          {"evaluated", m.evaluated},
          {"candidate", m.candidate()},
          {"bits_per_element", m.bits_per_element > 0 ? number(m.bits_per_element) : Json(nullptr)},
          {"code_bits_per_element", m.code_bits > 0 ? number(m.code_bits) : Json(nullptr)},
          {"allocated_bytes", m.allocated_bytes > 0 ? Json(m.allocated_bytes) : Json(nullptr)},
          {"tokens", q.tokens},
          {"nll", number(q.nll)},
          {"nll_stderr", number(q.nll_error)},
          {"ppl", number(q.ppl)},
          {"ppl_stderr", number(q.ppl_error)},
          {"ppl_ratio", number(q.ppl_ratio)},
          {"ppl_ratio_stderr", number(q.ppl_ratio_error)},
          {"ppl_ratio_ci", interval(q.ppl_ratio_interval)},
          {"ln_ppl_ratio", number(q.ln_ppl_ratio)},
          {"ln_ppl_ratio_stderr", number(q.ln_ppl_ratio_error)},
          {"ln_ppl_correlation", number(q.ln_ppl_correlation)},
          {"ppl_difference", number(q.ppl_difference)},
          {"ppl_difference_stderr", number(q.ppl_difference_error)},
          {"kl", kl_json(q.kl)},
          {"delta_p", delta_p_json(q.delta_p)},
          {"same_top1", number(q.same_top1)},
          {"same_top1_stderr", number(q.same_top1_error)},
          {"same_top1_ci", interval(q.same_top1_interval)},
          {"recall", recall_json(m.recall)},
          {"kl_by_position", positions_json(m.by_position)},
          {"kl_growth", growth_json(m)},
          {"layers", layers_json(m.layers)},
          {"tasks", tasks_json(m.tasks)},
          {"cache_ratios", ratios_json(m.ratios)},
          {"passes_gates", optional_bool(m.passes_gates)}};
}

Json gates_json(const std::vector<GateResult>& gates) {
  Json list = Json::array();
  for (const GateResult& g : gates) {
    list.push_back({{"name", g.name},
                    {"method", g.method},
                    {"path", g.path},
                    {"text", g.text.empty() ? Json(nullptr) : Json(g.text)},
                    {"limit", number(g.limit)},
                    {"value", optional_number(g.value)},
                    {"bound", optional_number(g.bound)},
                    {"reason", g.reason},
                    {"pass", g.pass},
                    {"decides", g.decides}});
  }
  return list;
}

Json left_out_json(const std::vector<LeftOut>& list) {
  Json rows = Json::array();
  for (const LeftOut& l : list) rows.push_back({{"id", l.id}, {"comparison", l.comparison}, {"reason", l.reason}});
  return rows;
}

Json baseline_json(const VerifyReport& r) {
  if (r.baseline.empty()) return nullptr;
  Json rows = Json::array();
  for (const BaselineChange& c : r.changes) {
    rows.push_back({{"method", c.method},
                    {"comparison", c.comparison},
                    {"path", c.path},
                    {"kl_before", number(c.kl_before)},
                    {"kl_now", number(c.kl_now)},
                    {"ppl_ratio_before", number(c.ppl_ratio_before)},
                    {"ppl_ratio_now", number(c.ppl_ratio_now)}});
  }
  return {{"name", r.baseline}, {"tokens", r.baseline_tokens}, {"changes", rows}};
}

Json checks_json(const std::vector<SelfCheck>& checks) {
  Json list = Json::array();
  for (const SelfCheck& c : checks) {
    list.push_back({{"name", c.name},
                    {"pass", optional_bool(c.pass)},
                    {"value", optional_number(c.value)},
                    {"limit", optional_number(c.limit)},
                    {"detail", c.detail}});
  }
  return list;
}

Json noise_json(const std::optional<NoiseFacts>& noise) {
  if (!noise) return nullptr;
  Json rows = Json::array();
  for (const auto& [id, kl] : noise->without_codes) rows.push_back({{"method", id}, {"kl", number(kl)}});
  return {{"tokens", noise->tokens}, {"arithmetic", optional_number(noise->arithmetic)}, {"without_codes", rows}};
}

}  // namespace

std::string report_json(const VerifyReport& r) {
  const auto text_facts = [](const TextFacts& t) {
    return Json{{"name", t.name}, {"sha256", t.sha256}, {"tokens", t.tokens}};
  };
  Json texts = Json::array();
  for (const TextFacts& t : r.texts) {
    texts.push_back(text_facts(t));
    texts.back()["sequences"] = t.sequences;
  }
  Json methods = Json::array();
  for (const MethodReport& m : r.methods) {
    methods.push_back(method_json(m));
    if (m.token_bytes > 0) methods.back()["token_bytes"] = number(m.token_bytes);
    if (!m.texts.empty()) methods.back()["texts"] = texts_json(m.texts);
  }
  Json bundles = Json::array();
  for (const BundleFacts& b : r.bundles) bundles.push_back(bundle_json(b));
  const Json report = {{"format_version", kReportFormatVersion},
                       {"tool", "oscar-verify " + r.tool_version},
                       {"command", r.command},
                       {"model", model_json(r.model)},
                       {"bundle", bundles.empty() ? Json(nullptr) : bundles[0]},
                       {"bundles", bundles},
                       {"served", served_json(r.served)},
                       {"text", text_facts(r.text)},
                       {"texts", texts},
                       {"context", r.scoring.context},
                       {"windows", {{"sink", r.sink}, {"recent", r.recent}}},
                       {"scoring", scoring_json(r)},
                       {"options", {{"dtype", r.dtype}, {"device", r.device}, {"seed", r.seed}}},
                       {"bootstrap", {{"samples", r.bootstrap_samples}, {"level", number(r.bootstrap_level)}}},
                       {"layer_error_sequences", r.layer_error_sequences},
                       {"target_bits", optional_number(r.target_bits)},
                       {"methods", methods},
                       {"noise", noise_json(r.noise)},
                       {"left_out", left_out_json(r.left_out)},
                       {"baseline", baseline_json(r)},
                       {"gates", gates_json(r.gates)},
                       {"default_gate", r.default_gate},
                       {"verdict", verdict_sentences(r)},
                       {"next_steps", r.steps},
                       {"self_checks", checks_json(r.checks)},
                       {"pass", r.pass}};
  return dump_json(report);
}

}  // namespace oscar
