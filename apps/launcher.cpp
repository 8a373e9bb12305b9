// bin/oscar-* of an installed package: finds LibTorch, selects the CPU or CUDA build of the command, and becomes that
// program. execv keeps the process, so signals and exit codes are the program's. docs/install.md states the rules.
//
// PREFIX/bin/oscar-fit                        this program
// PREFIX/lib/oscar-toolchain/{cpu,cuda}/...   the builds of the commands, beside their libraries
// PREFIX/lib/oscar-toolchain/torch            LibTorch or a link to it, if OSCAR_TORCH_DIR names no other
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "build_info.h"

namespace {

namespace fs = std::filesystem;
using oscar::EnvironmentError;
using oscar::kTorchSeries;

constexpr const char* kProbe = "lib/libtorch_cpu.so";

// Not shortened, because users copy it. log_error() escapes control characters.
std::string quote(const fs::path& path) { return "'" + path.string() + "'"; }

bool is_there(const fs::path& path) {
  std::error_code ec;
  return fs::exists(path, ec);
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : value;
}

// "2.11.0+cu130" from version.py of the Python package or build-version of the archive; empty if neither exists.
std::string torch_version(const fs::path& torch) {
  std::string line;
  std::ifstream package(torch / "version.py");
  while (std::getline(package, line)) {
    if (line.rfind("__version__", 0) != 0) continue;
    const auto begin = line.find_first_of("'\"");
    if (begin == std::string::npos) break;
    return line.substr(begin + 1, line.find_first_of("'\"", begin + 1) - begin - 1);
  }
  std::ifstream archive(torch / "build-version");
  line.clear();
  std::getline(archive, line);
  return line;
}

// The torch folder of the active virtual environment, or empty.
fs::path torch_of_active_environment() {
  const std::string environment = variable("VIRTUAL_ENV");
  if (environment.empty()) return {};
  std::vector<fs::path> found;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(fs::path(environment) / "lib", ec)) {
    const fs::path torch = entry.path() / "site-packages/torch";
    if (is_there(torch / kProbe)) found.push_back(torch);
  }
  std::sort(found.begin(), found.end());
  return found.empty() ? fs::path() : found.back();
}

// EnvironmentError if none is found, or one of another release series (C++ symbols differ).
fs::path find_torch(const fs::path& library_folder) {
  const std::string given = variable("OSCAR_TORCH_DIR");
  fs::path torch = given;
  if (!given.empty() && !is_there(torch / kProbe)) {
    throw EnvironmentError("OSCAR_TORCH_DIR names " + quote(given) + ", which holds no " + kProbe +
                           "; it must name the folder of LibTorch " + kTorchSeries);
  }
  if (given.empty()) torch = library_folder / "torch";
  if (!is_there(torch / kProbe)) torch = torch_of_active_environment();
  if (torch.empty()) {
    throw EnvironmentError(std::string("LibTorch ") + kTorchSeries +
                           " was not found; install it with `pip install 'torch==" + kTorchSeries +
                           ".*'` in a virtual environment and set OSCAR_TORCH_DIR to its torch folder, or link that "
                           "folder as " +
                           quote(library_folder / "torch"));
  }
  const std::string version = torch_version(torch);
  if (!version.empty() && version.rfind(std::string(kTorchSeries) + ".", 0) != 0) {
    throw EnvironmentError(quote(torch) + " is LibTorch " + oscar::quote_name(version) + ", and these commands need " +
                           kTorchSeries + "; install that release, or name it with " + "OSCAR_TORCH_DIR");
  }
  return torch;
}

// The CUDA build loads gigabytes before main(), so it starts only if a driver's device exists (Linux, or WSL).
bool has_gpu_device() { return is_there("/dev/nvidiactl") || is_there("/dev/dxg"); }

fs::path find_program(const fs::path& library_folder, const fs::path& torch, const std::string& name) {
  const fs::path cpu = library_folder / "cpu" / name, cuda = library_folder / "cuda" / name;
  const std::string asked = variable("OSCAR_BUILD");
  if (!asked.empty()) {
    if (asked != "cpu" && asked != "cuda") {
      throw oscar::UsageError("OSCAR_BUILD is " + oscar::quote_name(asked) + "; expected cpu or cuda");
    }
    const fs::path chosen = asked == "cpu" ? cpu : cuda;
    if (is_there(chosen)) return chosen;
    throw EnvironmentError("OSCAR_BUILD is " + asked + ", and " + quote(chosen) + " does not exist");
  }
  const bool cuda_runs = is_there(cuda) && is_there(torch / "lib/libtorch_cuda.so");
  if (cuda_runs && has_gpu_device()) return cuda;
  if (is_there(cpu)) return cpu;
  if (cuda_runs) return cuda;
  if (is_there(cuda)) {
    throw EnvironmentError("only the CUDA build of " + name + " is installed, and " + quote(torch) +
                           " is a LibTorch without CUDA; name one with CUDA in OSCAR_TORCH_DIR");
  }
  throw EnvironmentError(quote(library_folder) + " holds no build of " + name + "; install the package again");
}

// LibTorch's libraries and the adjacent CUDA libraries take precedence over the caller's LD_LIBRARY_PATH.
void set_library_path(const fs::path& torch) {
  std::string path = (torch / "lib").string();
  const fs::path cuda = torch.parent_path() / "nvidia/cu13/lib";
  if (is_there(cuda)) path += ":" + cuda.string();
  const std::string before = variable("LD_LIBRARY_PATH");
  if (!before.empty()) path += ":" + before;
  ::setenv("LD_LIBRARY_PATH", path.c_str(), 1);
}

// Prevents the restart of a command by base/openmp_spin.cpp.
void shorten_openmp_spin() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "1000", 0);
}

void become_program(char** argv) {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const fs::path library_folder = self.parent_path().parent_path() / "lib/oscar-toolchain";
  std::error_code ec;
  fs::path torch = find_torch(library_folder);
  const fs::path resolved = fs::canonical(torch, ec);  // resolves a link: CUDA's libraries are beside its target
  if (!ec) torch = resolved;
  const fs::path program = find_program(library_folder, torch, self.filename().string());
  set_library_path(torch);
  shorten_openmp_spin();
  ::execv(program.c_str(), argv);
  throw EnvironmentError(quote(program) + " cannot be started: " + std::strerror(errno));
}

}  // namespace

int main(int, char** argv) {
  try {
    become_program(argv);
  } catch (const oscar::Error& e) {
    oscar::log_error(e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    oscar::log_error(std::string("the command cannot be started: ") + e.what());
  }
  return static_cast<int>(oscar::ExitCode::kEnvironment);
}
