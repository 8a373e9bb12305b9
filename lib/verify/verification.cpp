#include "verify/verification.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "attention/cached_attention.h"
#include "base/errors.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/parallel.h"
#include "model/device.h"
#include "registry/registry.h"
#include "report/number_text.h"
#include "verify/forward.h"
#include "verify/gates.h"
#include "verify/plain_scores.h"
#include "verify/self_checks.h"
#include "verify/served_scores.h"
#include "verify/task_runner.h"
#include "verify/verify_phases.h"

namespace oscar {
namespace {

constexpr std::int64_t kPositionBuckets = 24;
constexpr std::int64_t kLeastServed = 16;  // scored positions of a prompt for a server

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

void refuse_repeats(const std::vector<std::string>& list, const char* flag) {
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (std::count(list.begin(), list.end(), list[i]) > 1) {
      throw UsageError(std::string(flag) + " names '" + list[i] + "' twice");
    }
  }
}

// The row of a single bundle. OSCAR with per-head rotations is oscar-head, unless it was requested as oscar.
std::string row_of(const Bundle& bundle, const std::vector<std::string>& asked) {
  const MethodRow* row = find_method(bundle.method);
  const bool by_head = row != nullptr && !row->head_id.empty() && bundle.scope == "head" && !contains(asked, row->id);
  return by_head ? row->head_id : id_of_bundle(bundle.method);
}

// Whether a row of this name would be taken for a method that the bundle does not hold. A name of a method that only
// bundles have is free, except the reference's, with which rows are compared.
bool names_other_method(const std::string& id, const Bundle& bundle) {
  const MethodRow* row = find_method(id);
  if (row == nullptr || runs_bundle(id, bundle.method)) return false;
  return !row->needs_bundle() || row->role == MethodRole::kReference;
}

// Ids of the bundles' rows. UsageError if two bundles have the same name.
std::vector<NamedBundle> name_bundles(const std::vector<EvaluatedBundle>& bundles,
                                      const std::vector<std::string>& asked) {
  std::vector<NamedBundle> named;
  const auto given = std::count_if(bundles.begin(), bundles.end(), [](const auto& b) { return b.fitted.empty(); });
  for (const EvaluatedBundle& b : bundles) {
    if (given == 1 || !b.fitted.empty()) {
      named.push_back({b.fitted.empty() ? row_of(*b.bundle, asked) : b.fitted, b.bundle});
      continue;
    }
    const std::string& id = b.facts.source;
    const bool repeated = std::any_of(named.begin(), named.end(), [&](const NamedBundle& n) { return n.id == id; });
    if (repeated || names_other_method(id, *b.bundle) || id == "all" || id == "2bit" ||
        id.find_first_of(" \t\n,") != std::string::npos) {
      throw UsageError("--bundle: rows of several bundles are named by their directories, and '" + id +
                       (repeated ? "' names two of them" : "' is no name for a row") + "; rename the directory");
    }
    named.push_back({id, b.bundle});
  }
  return named;
}

}  // namespace

Verification::Verification(const Checkpoint& checkpoint, const LazyTokenizer& tokenizer,
                           std::vector<EvaluatedBundle> bundles, VerifyRequest request)
    : checkpoint_(checkpoint), bundles_(std::move(bundles)), request_(std::move(request)) {
  check_request();
  request_.tasks = expand_tasks(request_.tasks);
  choose_methods();
  if (request_.decode) check_decode_path();
  choose_gate();
  check_gate_limits(request_.gates, has_candidate(), request_.tasks);
  if (request_.gates.max_kl_increase && request_.baseline.empty()) {
    throw UsageError("--max-kl-increase compares with an earlier report: add --baseline FILE.json");
  }
  if (!request_.baseline.empty()) earlier_ = BaselineReport::load(request_.baseline);
  check_tasks();
  read_texts(tokenizer);
  if (earlier_) {
    const VerifyReport facts = empty_report();
    earlier_->require_same(facts.model, facts.text, facts.scoring, facts.dtype);
    if (texts_.size() > 1 && earlier_->sequences() != facts.scoring.sequences) {
      throw InputError("the baseline scored " + std::to_string(earlier_->sequences()) + " sequences of these texts, " +
                       "and this run " + std::to_string(facts.scoring.sequences) +
                       ": with several texts, compare runs of equal --tokens and --max-sequences");
    }
  }
  if (!request_.served.empty() &&
      set_.context - request_.served_tokens < first_scored_position(request_.windows) + kLeastServed) {
    throw UsageError("sequences of " + grouped(set_.context) + " tokens without the last " +
                     grouped(request_.served_tokens) +
                     " (--served-tokens) hardly leave the BF16 windows: score longer ones");
  }
  if (set_.context < request_.context) {
    log_warning("the text has only " + grouped(set_.text_tokens) + " tokens: one sequence of " + grouped(set_.context) +
                " is scored instead of the context of " + grouped(request_.context));
  }
  for (const std::string& task : request_.tasks) {
    for (const std::int64_t length : request_.task_lengths) {
      tasks_.push_back(make_task(task, length, request_.task_prompts, request_.seed, tokenizer.get()));
    }
  }
}

// Runs before anything is read.
void Verification::check_request() const {
  if (request_.resume && request_.work_dir.empty()) {
    throw UsageError("--resume needs --report or --work-dir: the state of a run is kept next to its report");
  }
  if (request_.ranks != nullptr && request_.work_dir.empty()) {
    throw UsageError(
        "ranks exchange their scores through files: pass --report FILE, beside which they are kept, or --work-dir DIR");
  }
  if (request_.decode_last > 0) {
    if (!request_.prefill || !request_.decode) {
      throw UsageError("--decode-last needs --path both: the prefill pass fills the cache for the decode path");
    }
    if (!request_.tasks.empty()) {
      throw UsageError("--decode-last is for scored text, and tasks decode whole prompts: run --tasks by themselves");
    }
    if (!can_fill_cache(checkpoint_.config())) {
      throw UsageError(
          "--decode-last is for models whose layers all cache keys and values alike; this one also carries other "
          "states from token to token: leave it out");
    }
  }
  if (!request_.prefill && !request_.decode) throw UsageError("no path to measure: --path is prefill, decode or both");
  if (!request_.served.empty()) {
    parse_server_url(request_.served);
    if (request_.ranks != nullptr)
      throw UsageError("--served asks one server from one process: start it without torchrun");
    if (request_.served_tokens > request_.context / 4) {
      throw UsageError("--served-tokens " + std::to_string(request_.served_tokens) +
                       " is more than a quarter of --context " + std::to_string(request_.context) +
                       ", of which the server's own tokens are the end");
    }
  }
  if (request_.task_prompts < 1 || request_.task_prompts > 10000) {
    throw UsageError("--task-prompts is a number from 1 to 10000");
  }
}

// A candidate must have a paged cache. Notes once how the paged path of this device differs.
void Verification::check_decode_path() const {
  const ModelConfig& model = checkpoint_.config();
  std::vector<std::string> notes;
  for (const ComparedMethod& c : selection_.methods) {
    if (!c.method.paged() && contains(evaluated_, c.method.id)) {
      throw UsageError("method '" + c.method.id + "' " + c.method.coder->no_pages() + ": pass --path prefill");
    }
    const std::string note = decode_note(c.method, model, request_.decoder.device);
    if (note.empty() || contains(notes, note)) continue;
    log_info(note);
    notes.push_back(note);
  }
}

// Sets the default gate for a candidate, unless the request declines it.
void Verification::choose_gate() {
  const bool asked = request_.gates.any() || request_.gates.max_kl_increase;
  if (request_.no_gate && asked) throw UsageError("--no-gate stands beside a gate: drop one of the two");
  if (asked || request_.no_gate || !has_candidate()) return;
  request_.gates.max_kl = kDefaultMaxKl;
  default_gate_ = true;
}

void Verification::check_tasks() {
  const std::int64_t most = checkpoint_.config().max_position;
  refuse_repeats(request_.tasks, "--tasks");
  if (request_.task_lengths.empty()) request_.task_lengths = {request_.context};
  for (const std::int64_t length : request_.task_lengths) {
    if (!request_.tasks.empty() && (length < 1 || length > most)) {
      throw UsageError("a task of " + std::to_string(length) + " tokens does not fit the model's " +
                       std::to_string(most) + " positions");
    }
  }
}

// Reads the sequences to score.
void Verification::read_texts(const LazyTokenizer& tokenizer) {
  SequenceOptions sequences{.context = request_.context,
                            .max_tokens = request_.tokens,
                            .max_sequences = request_.max_sequences,
                            .max_position = checkpoint_.config().max_position};
  // Checks the context before reading the text, because the check is cheap.
  check_sequence_options(sequences, request_.windows);
  for (const fs::path& file : request_.texts) add_text(file, sequences, tokenizer);
  if (texts_.size() == 1) {
    text_ = texts_.front();
    return;
  }
  Sha256 hash;
  for (const TextFacts& text : texts_) {
    text_.name += (text_.name.empty() ? "" : ", ") + text.name;
    text_.tokens += text.tokens;
    hash.update(text.sha256);
  }
  text_.sha256 = hash.hex();
}

// Adds the sequences of one text, and determines how much of them was used for calibration.
void Verification::add_text(const fs::path& file, SequenceOptions sequences, const LazyTokenizer& tokenizer) {
  const ModelConfig& model = checkpoint_.config();
  std::optional<RowText> rows;
  if (holds_rows(file)) {
    const ChatTemplate chat = request_.rows.chat_template(checkpoint_.location().directory);
    rows = load_row_text(file, tokenizer, chat, model.vocabulary, request_.rows.options);
    for (const std::string& note : reading_notes(rows->rows)) log_info(note);
    if (!rows->rows.date.empty() && request_.rows.date.empty()) {
      log_info("the chat template writes the date, " + rows->rows.date + "; --date " + rows->rows.date +
               " gives the same text on another day");
    }
  }
  const bool only_ids = rows && rows->only_ids;
  sequences.prefix = only_ids ? leading_bos(rows->ids, model.bos_token) : leading_special_tokens(tokenizer.get());
  // Rows with texts also depend on the template.
  const std::string sha256 = rows && !only_ids ? rows->rows.sha256 : sha256_file(file);
  sequences.text_name = file.string();
  const std::vector<std::int32_t> ids = rows ? rows->ids : load_text(file, tokenizer.get());
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= model.vocabulary) {
      throw InputError(file.string() + ": token " + std::to_string(id) + " is outside the model's vocabulary of " +
                       std::to_string(model.vocabulary) + "; the tokenizer does not belong to this model");
    }
  }
  SequenceSet cut = cut_sequences(ids, sequences, request_.windows);
  if (!set_.sequences.empty() && cut.context != set_.context) {
    throw InputError(file.string() + ": gives sequences of " + grouped(cut.context) +
                     " tokens, and the texts before it " + "of " + grouped(set_.context) +
                     ": give longer texts, or a --context that all of them fill");
  }
  const auto same = [&](const fs::path& other) { return other.filename() == file.filename(); };
  const bool unique = std::count_if(request_.texts.begin(), request_.texts.end(), same) == 1;
  texts_.push_back(
      {unique ? file.filename().string() : file.string(), sha256, cut.text_tokens, std::ssize(cut.sequences)});
  compare_calibration(texts_.back().name, ids, cut.used(sequences.prefix.size()));
  set_.context = cut.context;
  set_.text_tokens += cut.text_tokens;
  set_.unused_tokens += cut.unused_tokens;
  std::move(cut.sequences.begin(), cut.sequences.end(), std::back_inserter(set_.sequences));
}

// Of several texts, the one with the largest shared part counts.
void Verification::compare_calibration(const std::string& name, const std::vector<std::int32_t>& ids,
                                       const std::vector<std::int32_t>& scored) {
  for (EvaluatedBundle& b : bundles_) {
    if (!b.fitted.empty() || b.bundle->calibration_hashes.empty()) continue;
    SeenText found = find_seen_text(b.bundle->calibration_hashes, ids, scored);
    found.text = name;
    if (found.seen()) {
      log_warning(name + " " + found.reason() + " that " + b.facts.source +
                  " was calibrated on, so that its figures are better than on unseen text");
    }
    std::optional<SeenText>& most = b.facts.calibration;
    if (!most || (found.seen() && !most->seen()) || found.shared * most->compared > most->shared * found.compared) {
      most = std::move(found);
    }
  }
}

void Verification::choose_methods() {
  const ModelConfig& model = checkpoint_.config();
  std::vector<std::string>& ids = request_.methods;
  const std::vector<NamedBundle> named = name_bundles(bundles_, ids);
  if (ids.empty()) {
    // Other methods run only if they are requested.
    ids = has_candidate() || !named.empty() ? std::vector{method_with(MethodRole::kBaseline).id} : default_methods();
    for (const NamedBundle& n : named) {
      if (!contains(ids, n.id)) ids.push_back(n.id);
    }
  }
  refuse_repeats(ids, "--methods");
  const bool expanded = contains(ids, "all") || contains(ids, "2bit");
  ids = expand_methods(ids, named);
  const std::string& reference = method_with(MethodRole::kReference).id;
  const bool alone = named.size() == 1;
  for (std::size_t i = 0; i < named.size(); ++i) {
    std::string id = named[i].id;
    // The reference represents a single bundle's method under any variant name.
    if (alone && !contains(ids, id) && contains(ids, reference) && runs_bundle(reference, named[i].bundle->method)) {
      id = reference;
    }
    if (!contains(ids, id)) ids.push_back(id);
    if (bundles_[i].fitted.empty()) evaluated_.push_back(id);
  }
  refuse_repeats(ids, "--methods");
  const std::string& baseline = method_with(MethodRole::kBaseline).id;
  ComparisonRequest comparison{ids, request_.comparisons, request_.windows, request_.context, request_.bits};
  selection_ = select_methods(comparison, model, named, expanded);
  for (const LeftOut& l : selection_.left_out) {
    if (!contains(evaluated_, l.id)) continue;
    throw UsageError("--compare " + l.comparison + " would leave out '" + l.id + "', the candidate: it " + l.reason +
                     "; choose another --bits or --context, or leave out the bundle");
  }
  baseline_ = make_method(baseline, model, nullptr, request_.windows);
}

void Verification::finish() {
  if (work_) work_->remove();
  work_.reset();
  if (request_.ranks == nullptr) return;
  request_.ranks->barrier();
  std::error_code ec;
  fs::remove(request_.work_dir, ec);  // on each machine; fails if it contains other files
}

VerifyReport Verification::run() {
  require_memory();
  if (!request_.served.empty()) server_.emplace(request_.served, std::chrono::seconds(request_.served_timeout));
  if (request_.work_dir.empty()) return measure();
  fs::path folder = request_.work_dir;
  if (Ranks* ranks = request_.ranks; ranks != nullptr) {
    // GEMM rounding depends on the number of threads.
    use_threads(std::stoi(ranks->broadcast(std::to_string(at::get_num_threads()))), "rank 0 was started with");
    folder /= "rank-" + std::to_string(ranks->rank());
  }
  {
    const Timeline::Phase opening(request_.timeline, verify_phase::kSaving);
    work_ = std::make_unique<VerifyWork>(folder, run_identity(), request_.resume);
  }
  use_threads(work_->threads(), kThreadsOfRun);
  try {
    return measure();
  } catch (const InterruptedError&) {
    throw InterruptedError("interrupted; the state is saved in " + request_.work_dir.string() +
                               ". Resume with: " + request_.resume_command,
                           true);
  }
}

RunnerOptions Verification::runner_options(const VerifyReport& report) const {
  return {.prefill = request_.prefill,
          .decode = request_.decode,
          .first_position = report.scoring.first_position,
          .tiers = request_.windows,
          .layer_sequences = report.layer_error_sequences,
          .decode_last = request_.decode_last,
          .work = work_.get(),
          .timeline = request_.timeline,
          .ranks = request_.ranks};
}

MethodReport Verification::method_report(const RunnerResult& result, std::size_t row, const VerifyReport& report,
                                         const BootstrapOptions& bootstrap,
                                         const std::vector<std::vector<std::int64_t>>& repeated) const {
  const std::vector<const KvMethod*> methods = method_pointers();
  const ScoredMethod& scored = result.scored[row];
  const std::vector<SequenceScores> scores = result.scores.row(row);
  const auto index =
      static_cast<std::size_t>(std::find(methods.begin(), methods.end(), scored.method) - methods.begin());
  const ComparedMethod& compared = selection_.methods[index];
  MethodReport m{.id = scored.method->id,
                 .source = scored.method->source,
                 .comparison = compared.comparison,
                 .settings = compared.settings,
                 .path = scored.path,
                 .quantized = scored.method->quantized};
  m.evaluated = contains(evaluated_, m.id);
  m.beside = m.evaluated && (m.id != evaluated_.front() || !request_.served.empty());
  m.code_bits = scored.method->bits_per_element();
  m.bits_per_element = scored.method->bits_per_element_at(set_.context);
  m.token_bytes = scored.method->token_bytes(checkpoint_.config());
  m.allocated_bytes = allocated_bytes(*scored.method, checkpoint_.config(), set_.context);
  add_quality(m, scores, bootstrap);
  m.recall = recall(scores, repeated);
  m.by_position = kl_by_position(scores, report.scoring.first_position, set_.context, kPositionBuckets);
  m.layers = result.layers[index];
  for (const std::int64_t context : {2048, 8192, 32768, 131072}) {
    if (!m.quantized || context > checkpoint_.config().max_position) continue;
    const auto whole = static_cast<double>(allocated_bytes(baseline_, checkpoint_.config(), context));
    const auto coded = static_cast<double>(allocated_bytes(*scored.method, checkpoint_.config(), context));
    m.ratios.push_back({context, whole / coded});
  }
  return m;
}

void Verification::add_quality(MethodReport& m, const std::vector<SequenceScores>& scores,
                               const BootstrapOptions& bootstrap) const {
  m.quality = summarize(scores, bootstrap);
  for (auto next = scores.begin(); const TextFacts& text : texts_) {
    if (texts_.size() == 1) break;
    const std::vector<SequenceScores> own(next, next + text.sequences);
    m.texts.push_back({text.name, text.sequences, summarize(own, bootstrap)});
    next += text.sequences;
  }
}

std::vector<std::vector<SequenceScores>> Verification::add_served(Decoder& decoder, VerifyReport& report,
                                                                  const BootstrapOptions& bootstrap) const {
  const Timeline::Phase phase(request_.timeline, verify_phase::kServed);
  const ServedPlan plan{first_scored_position(request_.windows), request_.served_tokens, request_.served_requests};
  ServedScores scores =
      score_served(decoder, baseline_, set_, plan, [&](const ServedRequest& request) { return server_->ask(request); });
  report.served = ServedFacts{server_->url(), server_->runs(), server_->model(), plan.generate, kServedTop};
  std::vector<std::vector<SequenceScores>> all;
  for (auto* rows : {&scores.prefill, &scores.decode}) {
    if (rows->empty()) continue;
    MethodReport m{.id = kServedRow,
                   .source = server_->url(),
                   .comparison = "common",
                   .settings = "as the server runs",
                   .path = rows == &scores.prefill ? "prefill" : "decode",
                   .evaluated = true};
    add_quality(m, *rows, bootstrap);
    m.by_position = kl_by_position(*rows, rows->front().first_position, set_.context, kPositionBuckets);
    report.methods.push_back(std::move(m));
    all.push_back(std::move(*rows));
  }
  return all;
}

void Verification::run_tasks(Decoder& decoder, std::vector<MethodReport>& rows) {
  if (tasks_.empty()) return;
  const Timeline::Phase phase(request_.timeline, verify_phase::kTasks);
  const std::vector<const KvMethod*> all = method_pointers();
  const AskServer ask = [&](const ServedRequest& request) { return server_->ask(request); };
  for (const TaskSet& task : tasks_) {
    for (const std::string path : {"prefill", "decode"}) {
      const bool runs = path == "prefill" ? request_.prefill : request_.decode;
      const bool served = server_ && (path == "prefill" || request_.served_tokens > 1);
      if (!runs && !served) continue;
      const std::vector<const KvMethod*> methods = runs ? all : std::vector<const KvMethod*>{};
      ServedTask answers;
      if (served) answers = [&](const TaskPrompt& p) { return served_answers(p, path == "decode", ask); };
      const std::vector<TaskScore> scores =
          run_task(decoder, methods, baseline_, task, path, work_.get(), request_.ranks, answers);
      for (MethodReport& m : rows) {
        if (m.path != path) continue;
        if (m.id == kServedRow) m.tasks.push_back(scores.back());
        for (std::size_t i = 0; i < methods.size(); ++i) {
          const bool same = methods[i]->id == m.id && selection_.methods[i].comparison == m.comparison;
          if (same) m.tasks.push_back(scores[i]);
        }
      }
    }
  }
}

VerifyReport Verification::measure() {
  VerifyReport report = empty_report();
  Timeline* timeline = request_.timeline;
  settle_on_device(timeline, request_.decoder.device);
  std::optional<Timeline::Phase> phase(std::in_place, timeline, verify_phase::kWeights);
  Decoder decoder(checkpoint_, request_.decoder);
  decoder.load_head();
  phase.reset();
  const RunnerResult result = run_methods(decoder, method_pointers(), baseline_, set_, runner_options(report));

  phase.emplace(timeline, verify_phase::kReport);
  report.scoring.tokens = result.tokens;
  report.scoring.fraction =
      static_cast<double>(result.tokens) / static_cast<double>(std::ssize(set_.sequences) * (set_.context - 1));
  const BootstrapOptions bootstrap{request_.bootstrap_samples, report.bootstrap_level, request_.seed};
  const bool first = is_first_rank(request_.ranks);
  std::vector<std::vector<std::int64_t>> repeated;
  for (std::size_t i = 0; first && i < set_.sequences.size(); ++i) {  // no other rank reports
    repeated.push_back(repeated_tokens(set_.sequences[i], request_.windows.sink, request_.windows.recent));
  }
  for (std::size_t row = 0; first && row < result.scored.size(); ++row) {
    report.methods.push_back(method_report(result, row, report, bootstrap, repeated));
  }
  std::vector<std::vector<SequenceScores>> served;
  if (server_) served = add_served(decoder, report, bootstrap);
  run_tasks(decoder, report.methods);
  phase.emplace(timeline, first && request_.ranks != nullptr ? verify_phase::kRanks : verify_phase::kChecks);
  if (!first) return report;
  phase.emplace(timeline, verify_phase::kChecks);
  if (request_.decoder.device.is_cpu() && request_.decoder.dtype == at::kFloat) {
    std::vector<const KvMethod*> evaluated;
    for (const ComparedMethod& c : selection_.methods) {
      if (contains(evaluated_, c.method.id)) evaluated.push_back(&c.method);
    }
    report.noise = measure_noise(decoder, checkpoint_, baseline_, evaluated, set_, report.scoring.first_position,
                                 request_.bfloat16_noise);
  }
  report.checks =
      self_checks(report, result, request_.decoder.dtype == at::kBFloat16, request_.decoder.device.is_cuda());
  phase.emplace(timeline, verify_phase::kReport);
  report.default_gate = default_gate_;
  apply_gates(request_.gates, report);
  if (earlier_) {
    earlier_->compare(report, request_.gates.max_kl_increase, bootstrap, [&](std::size_t row) {
      const std::size_t others = result.scored.size();
      return summarize(scores_from(row < others ? result.scores.row(row) : served[row - others],
                                   earlier_->first_position(), earlier_->sequences()),
                       bootstrap);
    });
  }
  report.steps = next_steps(report);
  return report;
}

}  // namespace oscar
