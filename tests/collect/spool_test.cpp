#include "collect/spool.h"
#include "collect/hidden_states.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "support/gpu.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

TEST(Spool, ReturnsWhatWasWritten) {
  TempDirectory dir;
  const at::Tensor rows = at::randn({100, 3, 5});
  Spool spool(dir / "s.bin", 100, {3, 5}, at::kFloat, false);
  spool.write(60, rows.narrow(0, 60, 40));
  spool.write(0, rows.narrow(0, 0, 60));
  spool.sync();
  EXPECT_TRUE(spool.read(0, 100).equal(rows));
  EXPECT_TRUE(spool.read(33, 50).equal(rows.narrow(0, 33, 50)));
  EXPECT_EQ(spool.read(10, 0).size(0), 0);
}

TEST(Spool, KeepsItsContentWhenReopened) {
  TempDirectory dir;
  const at::Tensor rows = at::randn({8, 4}).to(at::kBFloat16);
  Spool(dir / "s.bin", 8, {4}, at::kBFloat16, false).write(0, rows);
  EXPECT_TRUE(Spool(dir / "s.bin", 8, {4}, at::kBFloat16, true).read(0, 8).equal(rows));
  EXPECT_THROW(Spool(dir / "s.bin", 9, {4}, at::kBFloat16, true), InputError);  // another size
  EXPECT_THROW(Spool(dir / "none.bin", 8, {4}, at::kFloat, true), InputError);  // missing
}

// Rows of 6 bytes, written in any pieces: the same checksum. A bit or a block that has changed since shows.
TEST(Spool, ShowsDamageOfSavedRows) {
  const TempDirectory dir;
  const at::Tensor rows = at::randn({8, 3}).to(at::kBFloat16);
  SpoolSum saved;
  {
    Spool spool(dir / "s.bin", 8, {3}, at::kBFloat16, false), other(dir / "o.bin", 8, {3}, at::kBFloat16, false);
    spool.write(0, rows.narrow(0, 0, 5));
    other.write(0, rows.narrow(0, 0, 2));
    other.write(2, rows.narrow(0, 2, 3));
    saved = spool.sum();
    EXPECT_EQ(saved.rows, 5);
    EXPECT_EQ(saved.sum, other.sum().sum);
    other.write(4, rows.narrow(0, 4, 1));  // again
    EXPECT_EQ(saved.sum, other.sum().sum);
    spool.write(5, rows.narrow(0, 5, 3));  // after the state was saved
  }
  const std::string good = read_file(dir / "s.bin");
  const auto require = [&](const std::string& content, std::int64_t count) {
    write_file_atomic(dir / "s.bin", content);
    Spool(dir / "s.bin", 8, {3}, at::kBFloat16, true).require(saved, count);
  };
  EXPECT_NO_THROW(require(good, 5));
  EXPECT_THROW(require(good, 6), InputError);
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string damaged = good;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    if (at < 5 * 6) {
      EXPECT_THROW(require(damaged, 5), InputError) << at;
    } else {
      EXPECT_NO_THROW(require(damaged, 5)) << at;
    }
  }
  EXPECT_THROW(require(std::string(24, '\0') + good.substr(24), 5), InputError);
  EXPECT_THROW(require(good.substr(6, 6) + good.substr(0, 6) + good.substr(12), 5), InputError);
}

TEST(Spool, RefusesWhatItCannotReserve) {
  TempDirectory dir;
  // 2^60 bytes: more than any file system holds.
  EXPECT_THROW(Spool(dir / "big.bin", std::int64_t{1} << 50, {256}, at::kFloat, false), EnvironmentError);
  EXPECT_FALSE(fs::exists(dir / "big.bin"));
  EXPECT_THROW(Spool(dir / "no" / "such" / "folder.bin", 1, {1}, at::kFloat, false), EnvironmentError);
}

TEST(Spool, RefusesRowsThatDoNotFit) {
  TempDirectory dir;
  Spool spool(dir / "s.bin", 4, {2}, at::kFloat, false);
  EXPECT_ANY_THROW(spool.write(3, at::zeros({2, 2})));
  EXPECT_ANY_THROW(spool.write(0, at::zeros({2, 3})));
  EXPECT_ANY_THROW(spool.write(0, at::zeros({2, 2}, at::kDouble)));
  EXPECT_ANY_THROW(spool.read(2, 3));
}

void expect_mirror(at::Device device) {
  const TempDirectory dir;
  const at::Tensor rows = at::randn({10, 4}), next = at::randn({10, 4});
  MirroredSpool spool(dir / "s.bin", 10, {4}, at::kFloat, device);
  EXPECT_EQ(fs::exists(dir / "s.bin"), device.is_cpu());
  spool.write(0, rows.to(device));
  spool.write(0, next.narrow(0, 0, 3).to(device));  // a new layer
  spool.write(3, next.narrow(0, 3, 7).to(device));
  EXPECT_TRUE(spool.read(2, 8).cpu().equal(next.narrow(0, 2, 8)));
}

TEST(MirroredSpool, ReturnsWhatWasWritten) { expect_mirror(at::kCPU); }

TEST(MirroredSpool, ReturnsWhatWasWrittenOnTheGpu) {
  OSCAR_NEEDS_GPU();
  expect_mirror(at::Device(at::kCUDA, 0));
}

constexpr std::int64_t kRows = 10;

at::Tensor states_of(std::int64_t layer) { return at::full({kRows, 4}, static_cast<double>(layer)); }

// A run through layers of one step, whose state is saved before each of `saves`; it ends as if killed while it saves
// the state before `killed`, when the states are on disk and the point is not.
void run_states(const WorkDirectory& work, HiddenStates& states, std::int64_t first, std::vector<std::int64_t> saves,
                std::int64_t killed) {
  for (std::int64_t layer = first;; ++layer) {
    const bool saved = std::find(saves.begin(), saves.end(), layer) != saves.end();
    if (saved || layer == killed) states.save(layer);
    if (layer == killed) return;
    if (saved) {
      work.save_point({layer, {}, states.saved_sum(layer), {}});
      states.saved_state(layer);
    }
    states.begin(layer + 1);
    states.write(layer + 1, 0, states.read(layer, 0, 3) + 1);
    states.write(layer + 1, 3, states.read(layer, 3, kRows - 3) + 1);
  }
}

class HiddenStatesOfRuns : public testing::Test {
 protected:
  // Expects that the run goes on in `layer` with states that the kill did not touch, in two files.
  void expect_resume(const WorkDirectory& work, const HiddenStates::Shape& shape, std::int64_t layer) {
    ASSERT_EQ(work.load_point()->layer, layer);
    HiddenStates again(work, shape, *work.load_point());
    EXPECT_TRUE(again.read(layer, 0, kRows).equal(states_of(layer))) << layer;
    // lock, run, point, and two files; where states are held, the second only once a state needs it
    EXPECT_EQ(std::distance(fs::directory_iterator(work.path()), {}), shape.held ? 4 : 5) << layer;
    run_states(work, again, layer, {layer + 2, layer + 3}, layer + 4);
    EXPECT_TRUE(again.read(layer + 4, 0, kRows).equal(states_of(layer + 4)));
    HiddenStates later(work, shape, *work.load_point());
    EXPECT_TRUE(later.read(layer + 3, 0, kRows).equal(states_of(layer + 3)));
  }
  TempDirectory dir_;
  const Json run_{
      {"tool_version", "test"}, {"model", ""}, {"prompts", ""}, {"threads", 1}, {"options", Json::object()}};
};

TEST_F(HiddenStatesOfRuns, KilledWhileSavingTheyGoOnFromThePoint) {
  for (const bool held : {true, false}) {
    const HiddenStates::Shape shape{kRows, 4, at::kFloat, at::kCPU, held};
    for (const std::int64_t killed : {1, 2, 3, 4, 5}) {
      if (!held && killed > 1) continue;  // on disk, the state is saved before each layer
      const WorkDirectory work(dir_ / (std::to_string(killed) + (held ? "held" : "")), run_, false);
      {
        HiddenStates states(work, shape);
        states.begin(0);
        states.write(0, 0, states_of(0));
        run_states(work, states, 0, {0}, killed);
      }
      expect_resume(work, shape, 0);
    }
  }
}

}  // namespace
}  // namespace oscar
