// Compiled into every executable that uses LibTorch, not into a library.
//
// GNU OpenMP threads spin for milliseconds at the end of each parallel region while they wait for the next one. Where
// the cores are shared (other programs, a container's CPU quota) this burns the very time the work needs: with 2 cores
// and a load of 20, collecting the sample model took 110 s, and 7 s with this file. A short spin keeps the hand-over
// fast on an idle machine. libgomp reads the environment when it is loaded, long before main(), so the program starts
// itself once more with the variable set. Functions in .preinit_array run before the libraries are initialised, when
// that costs least. A user's own OMP_WAIT_POLICY or GOMP_SPINCOUNT is left alone.
#include <string.h>
#include <unistd.h>

namespace {

constexpr int kMaxEnvironment = 4096;  // entries; larger ones are left alone

void shorten_openmp_spin(int, char** argv, char** envp) {
  static char* environment[kMaxEnvironment + 2];
  static char setting[] = "GOMP_SPINCOUNT=1000";
  int n = 0;
  for (; envp[n] != nullptr; ++n) {
    if (n >= kMaxEnvironment) return;
    if (strncmp(envp[n], "OMP_WAIT_POLICY=", 16) == 0 || strncmp(envp[n], "GOMP_SPINCOUNT=", 15) == 0) return;
    environment[n] = envp[n];
  }
  environment[n] = setting;
  execve("/proc/self/exe", argv, environment);  // returns only when it fails: then go on as started
}

__attribute__((section(".preinit_array"), used)) void (*const kShortenOpenmpSpin)(int, char**,
                                                                                  char**) = shorten_openmp_spin;

}  // namespace
