#include "apps/options/shared_options.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <new>

#include "apps/options/config_check.h"
#include "base/errors.h"
#include "build_info.h"
#include "pipeline/common/device_choice.h"
#include "support/temp_directory.h"

namespace oscar {
namespace {

// Runs a small command with these arguments and returns its exit code.
int run(
    std::vector<std::string> arguments, CommonOptions* out = nullptr,
    const std::function<int()>& body = [] { return 0; }) {
  CommonOptions options;
  CLI::App app{"A test", "oscar-test"};
  set_up_app(app, options, "oscar-test --model M -o out");
  add_model_options(app, options, true);
  add_output_options(app, options, false);
  arguments.insert(arguments.begin(), "oscar-test");
  std::vector<char*> argv;
  for (std::string& a : arguments) argv.push_back(a.data());
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  const int code = run_app(app, options, static_cast<int>(argv.size()), argv.data(), body);
  testing::internal::GetCapturedStderr();
  testing::internal::GetCapturedStdout();
  if (out != nullptr) *out = options;
  return code;
}

TEST(CommonOptions, ParsesEveryFlag) {
  CommonOptions o;
  EXPECT_EQ(run({"--model", "M", "--revision", "abc", "--device", "cuda:1", "--dtype", "bfloat16", "--seed", "7", "-o",
                 "out", "--overwrite", "--dry-run", "--json", "-q", "--no-progress"},
                &o),
            0);
  EXPECT_EQ(o.model, "M");
  EXPECT_EQ(o.revision, "abc");
  EXPECT_EQ(o.device, "cuda:1");
  EXPECT_EQ(o.dtype, "bfloat16");
  EXPECT_EQ(o.seed, 7u);
  EXPECT_EQ(o.output, "out");
  EXPECT_TRUE(o.overwrite && o.dry_run && o.json && o.quiet && o.no_progress);
}

TEST(CommonOptions, UsageErrorsAreTwo) {
  EXPECT_EQ(run({}), 2);                                          // --model is required
  EXPECT_EQ(run({"--model"}), 2);                                 // no value
  EXPECT_EQ(run({"--model", "M", "--nonsense"}), 2);              // unknown option
  EXPECT_EQ(run({"--model", "M", "stray"}), 2);                   // unknown positional
  EXPECT_EQ(run({"--model", "M", "--device", "tpu"}), 2);         // not a device
  EXPECT_EQ(run({"--model", "M", "--device", "cuda:"}), 2);       // no index
  EXPECT_EQ(run({"--model", "M", "--device", "cuda:x"}), 2);      // not a number
  EXPECT_EQ(run({"--model", "M", "--device", "cuda:99999"}), 2);  // absurd index
  EXPECT_EQ(run({"--model", "M", "--dtype", "int8"}), 2);
  EXPECT_EQ(run({"--model", "M", "--seed", "-1"}), 2);
  EXPECT_EQ(run({"--model", "M", "--seed", "many"}), 2);
  EXPECT_EQ(run({"--model", "M", "--seed", "010"}), 2);   // would be read as octal
  EXPECT_EQ(run({"--model", "M", "--seed", "0x10"}), 2);  // or as hexadecimal
  EXPECT_EQ(run({"--model", "M", "--seed", "99999999999999999999"}), 2);
  EXPECT_EQ(run({"--model", "M", "-q", "-v"}), 2);  // contradict each other
}

TEST(CommonOptions, HelpAndVersionEndWithZero) {
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_EQ(run({"--version"}), 0);
  EXPECT_NE(version_text().find("oscar " + tool_version()), std::string::npos);
  EXPECT_NE(version_text().find("LibTorch: 2."), std::string::npos);
}

TEST(CommonOptions, ErrorsBecomeTheirExitCodes) {
  const std::vector<std::string> ok = {"--model", "M"};
  EXPECT_EQ(run(ok, nullptr, [] { return 1; }), 1);
  EXPECT_EQ(run(ok, nullptr, []() -> int { throw UsageError("x"); }), 2);
  EXPECT_EQ(run(ok, nullptr, []() -> int { throw InputError("x"); }), 3);
  EXPECT_EQ(run(ok, nullptr, []() -> int { throw EnvironmentError("x"); }), 4);
  EXPECT_EQ(run(ok, nullptr, []() -> int { throw NumericalError("x"); }), 5);
  EXPECT_EQ(run(ok, nullptr, []() -> int { throw InterruptedError("x"); }), 130);
  EXPECT_EQ(run(ok, nullptr, []() -> int { throw std::bad_alloc(); }), 4);
  EXPECT_EQ(run(ok, nullptr, []() -> int { throw std::runtime_error("x"); }), 5);
  EXPECT_EQ(run(ok, nullptr,
                []() -> int {
                  at::empty({std::int64_t{1} << 58});  // far more than any machine has
                  return 0;
                }),
            4);
  EXPECT_EQ(run(ok, nullptr,
                []() -> int {
                  at::ones({2, 3}).mm(at::ones({2, 3}));
                  return 0;
                }),
            5);
}

TEST(CommonOptions, ConfigFileGivesDefaultsAndTheCommandLineWins) {
  TempDirectory dir;
  std::ofstream(dir / "run.toml") << "# comment\nmodel = \"from-file\"\nseed = 11\njson = true\n";
  CommonOptions o;
  EXPECT_EQ(run({"--config", (dir / "run.toml").string(), "--seed", "12"}, &o), 0);
  EXPECT_EQ(o.model, "from-file");
  EXPECT_EQ(o.seed, 12u);
  EXPECT_TRUE(o.json);
}

TEST(CommonOptions, RealNumbersAreFiniteAndInRange) {
  const CLI::Validator check = real_number(0.0, 1.0);
  for (std::string good : {"0", "1", "0.5", "1e-3"}) EXPECT_EQ(check(good), "") << good;
  for (std::string bad : {"", "nan", "-nan", "inf", "1e999", "-0.1", "1.1", "0.5x", " 0.5", "0,5"}) {
    EXPECT_NE(check(bad), "") << bad;
  }
}

TEST(CommonOptions, BadConfigFilesAreUsageErrors) {
  TempDirectory dir;
  ASSERT_EQ(::mkfifo((dir / "pipe.toml").c_str(), 0600), 0);
  EXPECT_EQ(run({"--model", "M", "--config", (dir / "pipe.toml").string()}), 2);  // nobody writes into it
  EXPECT_EQ(run({"--model", "M", "--config", (dir / "absent.toml").string()}), 2);
  std::ofstream(dir / "key.toml") << "modle = \"typo\"\n";
  EXPECT_EQ(run({"--model", "M", "--config", (dir / "key.toml").string()}), 2);
  std::ofstream(dir / "value.toml") << "seed = \"many\"\n";
  EXPECT_EQ(run({"--model", "M", "--config", (dir / "value.toml").string()}), 2);
  EXPECT_EQ(run({"--model", "M", "--config", dir.path().string()}), 2);  // a directory
  // Arrays that the reader of the file takes as they are, although they never end or hold others.
  std::ofstream(dir / "open.toml") << "# [ no array\noutput = " << std::string(200000, '[') << "\n";
  EXPECT_EQ(run({"--model", "M", "-o", "x", "--config", (dir / "open.toml").string()}), 2);
  std::ofstream(dir / "end.toml") << "output = [\"a\",\n  'b#]', # ]\n";
  EXPECT_EQ(run({"--model", "M", "-o", "x", "--config", (dir / "end.toml").string()}), 2);
  EXPECT_EQ(config_fault("seed = 1\noutput = [\"a]\", '[' ] # [\nx = 'y'\n"), "");
  EXPECT_EQ(config_fault("a = 1\n\nb = [1,\n2"), "line 3: the array of 'b' is not closed");
  for (const char* open : {"\"x", "'x", "\"\"\"x\ny\"", "\'\'\'x\n\'\'", "\"x\\\"", "\"", "'\n'"}) {
    EXPECT_EQ(config_fault(std::string("# \"\nb = ") + open), "line 2: the text of 'b' is not closed") << open;
  }
  EXPECT_EQ(config_fault("a = \"x\\\"\"\nb = '\\'\nc = \"\"\"x\n'\ny\"\"\" # \"\nd = '' \ne = it's\n"), "");
  EXPECT_EQ(config_fault("b = [1, [2]]"), "line 1: the array of 'b' holds an array, which no option takes");
}

TEST(DeviceChoice, NeverFallsBackSilently) {
  CommonOptions options;
  options.device = "cpu";
  EXPECT_EQ(choose_device(options), at::Device(at::kCPU));
  options.device = "cuda:999";
  EXPECT_THROW(choose_device(options), EnvironmentError);
  if (!kBuiltWithCuda) {
    options.device = "cuda";
    EXPECT_THROW(choose_device(options), EnvironmentError);
    options.device = "auto";
    EXPECT_EQ(choose_device(options), at::Device(at::kCPU));
  }
}

TEST(DeviceChoice, RefusesGpusThatTheKernelsAreNotBuiltFor) {
  const int driver = 13000;
  const GpuFacts h100{"H100", 9, 0, driver}, a100{"A100", 8, 0, driver}, l4{"L4", 8, 9, driver},
      v100{"V100", 7, 0, driver}, b200{"B200", 10, 0, driver};
  const std::string built = "80-real;90a-real", compiler = "13.0.88";
  for (const GpuFacts& gpu : {h100, a100, l4}) EXPECT_EQ(gpu_unsupported(gpu, built, compiler), "") << gpu.name;
  EXPECT_THAT(gpu_unsupported(v100, built, compiler),
              ::testing::HasSubstr("V100 has compute capability 7.0, and the kernels of this build are for 8.0, 9.0"));
  EXPECT_THAT(gpu_unsupported(b200, built, compiler), ::testing::HasSubstr("OSCAR_CUDA_ARCHITECTURES=100"));
  EXPECT_EQ(gpu_unsupported(b200, "80", compiler), "");  // PTX
  EXPECT_EQ(gpu_unsupported(b200, "90-virtual", compiler), "");
  EXPECT_NE(gpu_unsupported(a100, "90-virtual", compiler), "");
  EXPECT_NE(gpu_unsupported(a100, "86-real", compiler), "");
  EXPECT_NE(gpu_unsupported({"B300", 10, 3}, "100a-real", compiler), "");
  EXPECT_NE(gpu_unsupported(h100, "", compiler), "");
}

// Machine code needs only a driver that runs; PTX needs one that is as new as the compiler.
TEST(DeviceChoice, RefusesADriverThatCannotTranslateTheKernels) {
  const std::string release = "80-real;86-real;89-real;90a-real;100-real;120-real;90-virtual";
  for (const GpuFacts& gpu :
       {GpuFacts{"RTX 3090", 8, 6, 13000}, GpuFacts{"RTX 4090", 8, 9, 13000}, GpuFacts{"H200", 9, 0, 13000},
        GpuFacts{"B200", 10, 0, 13000}, GpuFacts{"RTX 5090", 12, 0, 13000}, GpuFacts{"Thor", 11, 0, 13020}}) {
    EXPECT_EQ(gpu_unsupported(gpu, release, "13.2.51"), "") << gpu.name;
  }
  EXPECT_EQ(gpu_unsupported({"Thor", 11, 0, 13010}, release, "13.2.51"),
            "the driver of Thor is for CUDA 13.1 and cannot translate the kernels of this build, which CUDA 13.2.51 "
            "compiled; update the driver, or pass --device cpu");
  EXPECT_NE(gpu_unsupported({"T4", 7, 5, 13020}, release, "13.2.51"), "");
}

TEST(DeviceChoice, AutoDtypeFollowsTheDevice) {
  CommonOptions options;
  EXPECT_EQ(choose_dtype(options, at::kCPU), at::kFloat);
  EXPECT_EQ(choose_dtype(options, at::Device(at::kCUDA, 0)), at::kBFloat16);
  options.dtype = "bfloat16";
  EXPECT_EQ(choose_dtype(options, at::kCPU), at::kBFloat16);
}

TEST(WholeNumber, BoundsAndSpelling) {
  const CLI::Validator check = whole_number(1, 100);
  for (std::string good : {"1", "10", "100"}) EXPECT_EQ(check(good), "") << good;
  for (std::string bad : {"0", "101", "", "-1", "1.5", "1e2", "07", " 7", "99999999999999999999999"}) {
    EXPECT_NE(check(bad), "") << bad;
  }
  std::string most = "18446744073709551615";
  EXPECT_EQ(whole_number(0, UINT64_MAX)(most), "");
  std::string more = "18446744073709551616";
  EXPECT_NE(whole_number(0, UINT64_MAX)(more), "");
}

}  // namespace
}  // namespace oscar
