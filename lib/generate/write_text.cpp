#include "generate/write_text.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/cached_attention.h"
#include "base/errors.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/progress.h"
#include "base/random.h"
#include "base/run_directory.h"
#include "generate/sample_token.h"
#include "registry/registry.h"

namespace oscar {
namespace {

constexpr const char* kRowsFile = "rows.json";

KvMethod text_method(const ModelConfig& model) {
  return make_method(method_with(MethodRole::kBaseline).id, model, nullptr, CacheWindows{});
}

RunDirectory open_run(const TextRequest& request, bool resume) {
  return {request.work_dir, request.identity, resume,
          RunInputs{{"model", "is of another model (its fingerprint differs)"},
                    {"openers", "begins its rows with other tokens (another version or chat template)"}},
          [](const std::string& name) { return name == kRowsFile; }};
}

// Prefill of a row: exact attention over the full row, whose keys and values enter the cache.
class FillingAttention : public Attention {
 public:
  explicit FillingAttention(PagedAttention& cache) : cache_(cache) {}
  at::Tensor attend(const AttentionInput& input) override {
    cache_.append(input);
    return exact_.attend(input);
  }
  RecurrentStates* states() override { return cache_.states(); }

 private:
  PagedAttention& cache_;
  FullAttention exact_;
};

// An unfinished row: its tokens, and the tokens that are forced next.
struct RowState {
  std::int64_t row = 0;
  std::vector<std::int32_t> tokens;
  std::size_t forced_from = 0;  // index into forced
  std::vector<std::int32_t> forced;
  std::int64_t draws = 0;  // openers drawn so far

  // Appends the next forced token, or `drawn` if none is forced.
  void append(const ScriptBook& book, std::int32_t drawn) {
    if (const auto from = book.repeated_from(row, std::ssize(tokens))) {
      forced.assign(tokens.begin() + *from, tokens.begin() + *from + kRepeatedTokens);
      forced_from = 0;
    }
    if (forced_from < forced.size()) {
      tokens.push_back(forced[forced_from++]);
      return;
    }
    tokens.push_back(drawn);
    if (!book.ends(row, drawn)) return;
    forced = book.next(row, ++draws, drawn);
    forced_from = 0;
  }
};

class TextWriter {
 public:
  TextWriter(Decoder& decoder, const ScriptBook& book, const TextRequest& request)
      : decoder_(decoder),
        book_(book),
        request_(request),
        run_(open_run(request, request.resume)),
        method_(text_method(decoder.config())),
        progress_("text", static_cast<std::uint64_t>(request.shape.tokens()), "tokens") {}

  TextRows write() {
    use_threads(run_.threads(), kThreadsOfRun);
    load();
    const std::int64_t length = request_.shape.row_tokens;
    const std::int64_t most = request_.shape.batch_rows;
    for (std::int64_t first = 0; first < request_.shape.rows; first += most) {
      const std::int64_t count = std::min(most, request_.shape.rows - first);
      while (std::ssize(rows_[static_cast<std::size_t>(first)]) < length) write_block(first, count);
    }
    progress_.finish();
    return std::move(rows_);
  }

 private:
  // Loads the tokens of every row up to the last complete block.
  void load() {
    rows_.assign(static_cast<std::size_t>(request_.shape.rows), {});
    const std::optional<Json> found = run_.load_json(kRowsFile);
    if (!found) return;
    const std::string where = run_.file(kRowsFile).string();
    const Json& rows = json_array(*found, "rows", where);
    if (rows.size() != rows_.size()) {
      damaged_run(where, "holds " + std::to_string(rows.size()) + " rows, expected " + std::to_string(rows_.size()));
    }
    std::uint64_t done = 0;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      if (!rows[r].is_array()) damaged_run(where, "row " + std::to_string(r) + " is no list of tokens");
      for (const Json& id : rows[r]) {
        if (!id.is_number_integer() || id < 0 || id >= decoder_.config().vocabulary) {
          damaged_run(where, "row " + std::to_string(r) + " holds a token that the model does not know");
        }
        rows_[r].push_back(id.get<std::int32_t>());
      }
      const std::int64_t length = std::ssize(rows_[r]), whole = request_.shape.row_tokens;
      // Rows of a batch end together, and batches follow each other.
      const auto each = static_cast<std::size_t>(request_.shape.batch_rows);
      const std::size_t head = r / each * each;
      const bool follows = head == 0 || length == 0 || std::ssize(rows_[head - 1]) == whole;
      if (length > whole || (length != whole && length % kBlockTokens != 0) || length != std::ssize(rows_[head]) ||
          !follows) {
        damaged_run(where, "row " + std::to_string(r) + " has " + std::to_string(length) + " tokens");
      }
      done += static_cast<std::uint64_t>(length);
    }
    if (done > 0) log_info(where + ": " + std::to_string(done) + " tokens are taken from it");
    progress_.advance(done);
  }

  void save() {
    run_.save_json(kRowsFile, Json::object({{"rows", rows_}}));
    if (request_.after_block) request_.after_block();
  }

  // A row replayed from its start: its forced tokens follow from its tokens.
  RowState replay(std::int64_t row) const {
    RowState state{.row = row, .forced = book_.begin(row)};
    for (const std::int32_t token : rows_[static_cast<std::size_t>(row)]) state.append(book_, token);
    return state;
  }

  void write_block(std::int64_t first, std::int64_t count) {
    std::vector<RowState> states;
    for (std::int64_t row = first; row < first + count; ++row) states.push_back(replay(row));
    const std::int64_t begin = std::ssize(states.front().tokens);
    const std::int64_t end = std::min(begin + kBlockTokens, request_.shape.row_tokens);
    if (begin == 0) {
      for (RowState& state : states) state.append(book_, 0);  // a row begins with a forced token
      progress_.advance(static_cast<std::uint64_t>(count));
    }
    PagedAttention cache(method_, decoder_.config(), decoder_.options().device);
    cache.expect(count, request_.shape.row_tokens);
    fill(cache, states);
    SequenceBatch batch;
    for (std::int64_t i = 0; i < count; ++i) batch.ids.push_back(i);
    batch.lengths.assign(states.size(), 1);
    for (std::int64_t position = std::ssize(states.front().tokens); position < end; ++position) {
      stop_if_asked();
      std::vector<std::int32_t> newest;
      for (const RowState& state : states) newest.push_back(state.tokens.back());
      batch.starts.assign(states.size(), position - 1);
      const at::Tensor hidden = decoder_.forward(newest, batch, cache);
      const at::Tensor logits = decoder_.logits(hidden).contiguous();
      std::vector<double> units;
      for (const RowState& state : states) {
        units.push_back(
            random_unit(request_.seed, static_cast<std::uint64_t>(state.row), static_cast<std::uint64_t>(position)));
      }
      const std::vector<std::int32_t> drawn = sample_tokens(logits, request_.vocabulary, units);
      for (std::size_t i = 0; i < states.size(); ++i) states[i].append(book_, drawn[i]);
      progress_.advance(static_cast<std::uint64_t>(count));
    }
    for (RowState& state : states) rows_[static_cast<std::size_t>(state.row)] = std::move(state.tokens);
    save();
  }

  // All tokens but the newest of each row enter the cache.
  void fill(PagedAttention& cache, const std::vector<RowState>& states) {
    FillingAttention filling(cache);
    for (std::size_t i = 0; i < states.size(); ++i) {
      const std::vector<std::int32_t> before(states[i].tokens.begin(), states[i].tokens.end() - 1);
      if (before.empty()) continue;
      stop_if_asked();
      decoder_.forward(before, {{static_cast<std::int64_t>(i)}, {std::ssize(before)}, {0}}, filling);
    }
  }

  void stop_if_asked() const {
    if (!interrupt_requested()) return;
    throw InterruptedError(
        "interrupted; the text so far is in " + run_.path().string() + ". Resume with: " + request_.resume_command,
        true);
  }

  Decoder& decoder_;
  const ScriptBook& book_;
  const TextRequest& request_;
  RunDirectory run_;
  KvMethod method_;
  Progress progress_;
  TextRows rows_;
};

}  // namespace

TextShape text_shape(std::int64_t tokens, std::int64_t longest) {
  const std::int64_t most = std::max<std::int64_t>(1, std::min(kRowTokens, longest));
  TextShape shape;
  shape.rows = (tokens + most - 1) / most;
  shape.row_tokens = (tokens + shape.rows - 1) / shape.rows;
  return shape;
}

std::uint64_t text_bytes(const ModelConfig& model, const TextShape& shape) {
  const KvMethod method = text_method(model);
  const auto rows = static_cast<std::uint64_t>(std::min(shape.batch_rows, shape.rows));
  // The cache grows in steps; while it grows, old and new pages exist at once.
  const std::uint64_t cache = 2 * allocated_bytes(method, model, shape.row_tokens);
  // Logits in FP32, and in FP64 while a token is drawn.
  return rows * (cache + 4 * sizeof(double) * static_cast<std::uint64_t>(model.vocabulary));
}

TextShape on_device(TextShape shape, const ModelConfig& model, std::uint64_t weight_bytes, std::uint64_t device_bytes) {
  for (const std::int64_t times : {4, 2}) {
    TextShape larger = shape;
    larger.batch_rows = times * kBatchRows;
    if (weight_bytes + text_bytes(model, larger) <= device_bytes / 10 * 9) return larger;
  }
  return shape;
}

TextRows write_text(Decoder& decoder, const ScriptBook& book, const TextRequest& request) {
  const c10::InferenceMode no_gradients;
  return TextWriter(decoder, book, request).write();
}

void forget_text(const TextRequest& request) {
  if (!holds_run(request.work_dir)) return;
  open_run(request, true).remove();
}

}  // namespace oscar
