#include "statistics/spool.h"
#include "statistics/mirrored_spool.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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
  {
    MirroredSpool spool(dir / "s.bin", 10, {4}, at::kFloat, false, device, 0);
    spool.write(0, rows.to(device));
    spool.sync();
    spool.write(0, next.narrow(0, 0, 3).to(device));  // a new layer
    spool.write(3, next.narrow(0, 3, 4).to(device));
    EXPECT_TRUE(spool.read(0, 7).cpu().equal(next.narrow(0, 0, 7)));
    spool.sync();
  }
  MirroredSpool again(dir / "s.bin", 10, {4}, at::kFloat, true, device, 7);
  again.write(7, next.narrow(0, 7, 3).to(device));
  EXPECT_TRUE(again.read(0, 10).cpu().equal(next));
  again.sync();
  EXPECT_TRUE(Spool(dir / "s.bin", 10, {4}, at::kFloat, true).read(0, 10).equal(next));
}

TEST(MirroredSpool, KeepsRowsAcrossAResume) { expect_mirror(at::kCPU); }

TEST(MirroredSpool, KeepsRowsAcrossAResumeOnTheGpu) {
  OSCAR_NEEDS_GPU();
  expect_mirror(at::Device(at::kCUDA, 0));
}

}  // namespace
}  // namespace oscar
