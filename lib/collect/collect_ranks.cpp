#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/interrupt.h"
#include "base/parallel.h"
#include "collect/collect_phases.h"
#include "collect/collect_ranks.h"
#include "model/background_jobs.h"
#include "statistics/layer_fields.h"
#include "statistics/shard_merge.h"
#include "statistics/statistics_format.h"

namespace oscar {

// What a rank announces at the start.
struct RankFacts {
  std::int64_t layer = 0, tokens = 0;
  fs::path folder;
};

namespace {

constexpr std::chrono::milliseconds kLookEvery{2};

// Rank 0 sees the work directories of the others, so nothing needs to be sent.
bool on_one_machine(const Ranks& ranks) { return ranks.environment().local_count == ranks.count(); }

std::vector<RankFacts> meet(Ranks& ranks, const RankFacts& own) {
  std::vector<RankFacts> all;
  for (const std::string& said : ranks.all_gather(std::to_string(own.layer) + " " + std::to_string(own.tokens) + " " +
                                                  own.folder.string())) {  // last, since its name may contain any bytes
    std::istringstream text(said);
    RankFacts rank;
    text >> rank.layer >> rank.tokens;
    rank.folder = said.substr(static_cast<std::size_t>(text.tellg()) + 1);
    all.push_back(std::move(rank));
  }
  return all;
}

bool has_far_pairs(const Statistics& share) {
  return !share.layers.empty() && share.layers.front().far_count.defined();
}

// Saves a share without its layers.
void save_rest(const Statistics& share, const fs::path& file) {
  const at::Tensor energy = share.embedding_energy.contiguous();
  write_safetensors(file,
                    {{"embedding_energy",
                      DType::kF64,
                      energy.sizes().vec(),
                      {static_cast<const std::byte*>(energy.const_data_ptr()), energy.nbytes()}}},
                    {{"oscar", statistics_metadata(share).dump()}, {"far", has_far_pairs(share) ? "yes" : "no"}},
                    /*durable=*/false);
}

}  // namespace

struct ShareDelivery::Impl {
  const CollectOptions& options;
  const WorkDirectory& work;
  Ranks& ranks;
  bool early;
  std::vector<RankFacts> all;
  std::set<std::int64_t> left;                  // layers that have a file
  std::map<std::int64_t, LayerMoments> merged;  // only on rank 0, by layer
  std::atomic<bool> ends{false};
  std::optional<BackgroundJobs> jobs;  // the last member: the jobs use the others

  Impl(const CollectOptions& o, const WorkDirectory& w)
      : options(o), work(w), ranks(*o.ranks), early(on_one_machine(*o.ranks)) {}
  ~Impl() { ends = true; }

  fs::path layer_file(std::size_t rank, std::int64_t layer) const { return all[rank].folder / rank_layer_name(layer); }

  // Removes files of an earlier attempt, so that they are not taken for files of this one.
  void remove_old() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(work.path())) {
      if (entry.path().filename().string().starts_with("part-")) fs::remove(entry.path());
    }
  }

  // Returns false if the run ends first.
  bool wait_for_others(std::int64_t layer) const {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      while (all[rank].tokens > 0 && !fs::exists(layer_file(rank, layer))) {
        if (ends || interrupt_requested()) return false;
        std::this_thread::sleep_for(kLookEvery);
      }
    }
    return true;
  }

  // own: rank 0's sums. far: for each rank, whether it has pairs outside the windows; empty: all have.
  LayerMoments merge(std::int64_t layer, const LayerMoments& own, const std::vector<bool>& far) const {
    std::vector<LayerMoments> found;
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].tokens == 0) continue;
      found.push_back(load_rank_layer(layer_file(rank, layer)));
      if (far.empty() || far[rank]) continue;
      for (const MetricField& field : kFarPairFields) found.back().*field.tensor = at::Tensor();
    }
    LayerParts parts = {&own};
    for (const LayerMoments& part : found) parts.push_back(&part);
    return merge_layer(parts, merged_rows(parts, options.rows));
  }

  void leave(std::int64_t layer, const LayerMoments& moments) {
    if (left.insert(layer).second) save_rank_layer(work.file(rank_layer_name(layer)), moments);
  }

  // The share of another rank without layers: rank 0's own header with the fields that differ.
  Statistics read_rest(std::size_t rank, const Statistics& own, std::vector<bool>& far) const {
    const fs::path path = all[rank].folder / share_name(0);
    if (all[rank].tokens == 0) {
      far.push_back(options.far.enabled);
      return load_part(path);
    }
    const SafetensorsFile file = SafetensorsFile::open(path);
    Statistics share = own;
    share.layers.assign(own.layers.size(), {});
    share.tokens = all[rank].tokens;
    share.metadata = parse_json(file.metadata().at("oscar"), path.string());
    const TensorView& energy = file.at("embedding_energy");
    share.embedding_energy = at::empty(energy.shape, at::kDouble);
    read_mapped(energy.data, static_cast<std::byte*>(share.embedding_energy.mutable_data_ptr()));
    far.push_back(file.metadata().at("far") == "yes");
    return share;
  }

  Statistics add_up(Statistics own) {
    if (jobs) jobs->wait();
    std::vector<std::string> names = {work.file(share_name(0)).string()};
    std::vector<bool> far = {has_far_pairs(own)};
    std::vector<Statistics> shares = {own};
    shares[0].layers.assign(own.layers.size(), {});
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      names.push_back((all[rank].folder / share_name(0)).string());
      shares.push_back(read_rest(rank, own, far));
    }
    // If all sequences of a share are too short, it has no pairs outside the windows, which its layers do not show.
    const bool dropped = std::count(far.begin(), far.end(), options.far.enabled) != std::ssize(far);
    std::vector<LayerMoments> layers(own.layers.size());
    parallel_tasks(std::ssize(layers), [&](std::int64_t place) {
      const auto i = static_cast<std::size_t>(place);
      const auto found = merged.find(own.number(i));
      layers[i] =
          dropped || found == merged.end() ? merge(own.number(i), own.layers[i], far) : std::move(found->second);
    });
    return merge_shards(std::move(shares), std::move(names), std::move(layers));
  }

  // Receives complete files from other machines.
  Statistics receive(const Statistics& own) {
    std::vector<std::string> names = {work.file(share_name(0)).string()};
    std::vector<Statistics> shares = {own};
    for (int rank = 1; rank < ranks.count(); ++rank) {
      const fs::path file = work.file(share_name(rank));
      ranks.receive_file(rank, file);
      shares.push_back(load_part(file));
      names.push_back((all[static_cast<std::size_t>(rank)].folder / share_name(0)).string());
    }
    return merge_shards(std::move(shares), std::move(names));
  }

  void hand_over(const Statistics& share) {
    const fs::path file = work.file(share_name(0));
    if (!on_one_machine(ranks) || share.tokens == 0) return save_statistics(share, file, /*durable=*/false);
    for (std::size_t i = 0; i < share.layers.size(); ++i) leave(share.number(i), share.layers[i]);
    save_rest(share, file);
  }
};

ShareDelivery::ShareDelivery(const CollectOptions& options, const WorkDirectory& work, std::int64_t layer,
                             std::int64_t tokens)
    : impl_(std::make_unique<Impl>(options, work)) {
  impl_->remove_old();
  impl_->all = meet(*options.ranks, {layer, tokens, fs::absolute(work.path())});
  if (!impl_->early || !options.ranks->is_first()) return;
  impl_->jobs.emplace(at::kCPU, static_cast<std::uint64_t>(kMaxLayers));
}

ShareDelivery::~ShareDelivery() = default;

void ShareDelivery::add(std::int64_t layer, const LayerMoments& moments) {
  Impl& impl = *impl_;
  if (!impl.early) return;
  if (!impl.ranks.is_first()) return impl.leave(layer, moments);
  impl.jobs->add(1, [&impl, layer, moments] {  // copies: the layer may be released first
    if (impl.wait_for_others(layer)) impl.merged[layer] = impl.merge(layer, moments, {});
  });
}

std::optional<Statistics> ShareDelivery::finish(Statistics share) {
  Impl& impl = *impl_;
  const Timeline::Phase delivering(impl.options.timeline, phase::kRanks);
  Ranks& ranks = impl.ranks;
  const bool first = ranks.is_first();
  if (!first) impl.hand_over(share);
  ranks.barrier();
  std::optional<Statistics> whole;
  if (first) {
    whole = on_one_machine(ranks) ? impl.add_up(std::move(share)) : impl.receive(share);
    const Timeline::Phase saving(impl.options.timeline, phase::kSaving);
    save_statistics(*whole, impl.options.output);
  } else if (!on_one_machine(ranks)) {
    ranks.send_file(impl.work.file(share_name(0)));
  }
  ranks.broadcast("written");
  return whole;
}

void require_same_everywhere(Ranks& ranks, const Json& identity) {
  Json own = identity;
  own["options"].erase("shard");
  own.erase("threads");
  const std::vector<std::string> all = ranks.all_gather(own.dump());
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all.front(); });
  if (other == all.end()) return;
  const Json first = parse_json(all.front(), "rank 0"), found = parse_json(*other, "another rank");
  std::string what = "options";
  for (const char* key : {"tool_version", "prompts", "model"}) {
    if (json_member(found, key) != json_member(first, key)) what = key;
  }
  throw InputError("rank " + std::to_string(other - all.begin()) + " differs from rank 0 in its " + what +
                   ": all ranks need the same command, model, prompts and version");
}

void remove_run_directory(const CollectOptions& options) {
  options.ranks->barrier();
  std::error_code ec;
  fs::remove(run_directory_of(options), ec);  // on each machine; fails if other files are in it
}

}  // namespace oscar
