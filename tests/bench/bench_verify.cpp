// What one more method costs oscar-verify on the sample model, split by what the time goes to. CPU time of the process,
// mean of the sequences: 2,048 tokens each, scored from position 320 on.
//   bench_verify [METHOD,...|all] [SEQUENCES]
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <sstream>

#include "attention/cached_attention.h"
#include "support/paths.h"
#include "text/prompts.h"
#include "text/sequences.h"
#include "verify/divergence.h"
#include "verify/forward.h"

namespace oscar {
namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Adds up the CPU time of another attention.
class TimedAttention : public Attention {
 public:
  explicit TimedAttention(const KvMethod& method) : attention_(method) {}
  at::Tensor attend(const AttentionInput& input) override {
    const double start = cpu_seconds();
    at::Tensor out = attention_.attend(input);
    seconds += cpu_seconds() - start;
    return out;
  }
  double seconds = 0;

 private:
  SimulatedPrefillAttention attention_;
};

struct Split {
  double attention = 0, rest = 0, head = 0, scores = 0;
  double total() const { return attention + rest + head + scores; }
};

void print(const std::string& name, const Split& s, double count, double baseline) {
  std::printf("%-16s %8.1f %8.1f %8.1f %8.1f %9.1f ms  %5.0f%%\n", name.c_str(), 1e3 * s.attention / count,
              1e3 * s.rest / count, 1e3 * s.head / count, 1e3 * s.scores / count, 1e3 * s.total() / count,
              100 * s.total() / baseline);
}

int run(const std::string& list, std::int64_t count) {
  const std::string folder = OSCAR_SOURCE_DIR "/sample_data/";
  const Checkpoint checkpoint = Checkpoint::open(locate_model(folder + "tiny-qwen3-outliers"));
  const Tokenizer tokenizer = Tokenizer::from_file(folder + "tiny-qwen3-outliers/tokenizer.json");
  Decoder decoder(checkpoint, {});
  const CacheWindows windows;
  const SequenceSet set =
      cut_sequences(load_text(folder + "heldout.txt", tokenizer), {2048, 0, count, 8192, {}}, windows);
  std::vector<KvMethod> methods{make_method("bf16", checkpoint.config(), nullptr, windows)};
  std::string all;
  for (const std::string& id : method_ids()) {
    if (id != "bf16" && id != "oscar") all += id + ",";  // a bundle's passes cost what hadamard2's do
  }
  std::stringstream names(list == "all" ? all : list);
  for (std::string id; std::getline(names, id, ',');)
    methods.push_back(make_method(id, checkpoint.config(), nullptr, windows));

  const std::int64_t first = first_scored_position(windows),
                     step = rows_per_block(checkpoint.config().vocabulary, at::kCPU);
  std::vector<Split> splits(methods.size());
  for (std::size_t s = 0; s <= set.sequences.size(); ++s) {  // the first one twice: warm-up
    if (s == 1) splits.assign(methods.size(), {});
    const std::vector<std::int32_t>& ids = set.sequences[s == 0 ? 0 : s - 1];
    std::vector<at::Tensor> hidden;
    for (std::size_t m = 0; m < methods.size(); ++m) {
      TimedAttention attention(methods[m]);
      const double start = cpu_seconds();
      hidden.push_back(prefill_hidden(decoder, ids, {&attention})[0]);
      splits[m].attention += attention.seconds;
      splits[m].rest += cpu_seconds() - start - attention.seconds;
    }
    for (std::int64_t from = first; from < std::ssize(ids) - 1; from += step) {
      const std::int64_t rows = std::min(step, std::ssize(ids) - 1 - from);
      const std::span<const std::int32_t> targets(ids.data() + from + 1, static_cast<std::size_t>(rows));
      std::optional<BaselineRows> base;
      for (std::size_t m = 0; m < methods.size(); ++m) {
        const double start = cpu_seconds();
        const at::Tensor logits = decoder.logits(hidden[m].narrow(0, from, rows));
        const double middle = cpu_seconds();
        SequenceScores scores;
        if (m == 0) {
          base.emplace(logits, targets, "bench");
        } else {
          base->score(logits, methods[m].id, scores);
        }
        splits[m].head += middle - start;
        splits[m].scores += cpu_seconds() - middle;
      }
    }
  }
  std::printf("%-16s %8s %8s %8s %8s %12s\n", "method", "attention", "layers", "lm head", "scores", "total");
  const double n = static_cast<double>(set.sequences.size());
  for (std::size_t m = 0; m < methods.size(); ++m) print(methods[m].id, splits[m], n, splits[0].total());
  std::vector<double> shares;
  for (std::size_t m = 1; m < methods.size(); ++m) shares.push_back(100 * splits[m].total() / splits[0].total());
  std::sort(shares.begin(), shares.end());
  if (!shares.empty()) std::printf("median %.0f%%, worst %.0f%%\n", shares[shares.size() / 2], shares.back());
  return 0;
}

}  // namespace
}  // namespace oscar

int main(int argc, char** argv) { return oscar::run(argc > 1 ? argv[1] : "all", argc > 2 ? std::atoi(argv[2]) : 2); }
