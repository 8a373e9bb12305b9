// Compiled into every executable that uses LibTorch, not into a library.
//
// GNU OpenMP threads spin for milliseconds after each parallel region while they wait for the next one. On shared cores
// (other programs, a container's CPU quota) this wastes CPU time that the work needs. With 2 cores and a load of 20,
// collecting the sample model took 110 s, and 7 s with this file. A short spin keeps the hand-over fast on an idle
// machine.
// libgomp reads the environment when it is loaded, long before main(). Functions in .preinit_array run earlier. The
// environment cannot grow there, but this code replaces a variable that shells leave and no program reads. If there is
// none, the program restarts itself with the variable set, so all libraries load twice. A user's OMP_WAIT_POLICY or
// GOMP_SPINCOUNT is not changed.
#include <string.h>
#include <unistd.h>

namespace {

constexpr int kMaxEnvironment = 4096;  // entries; larger environments are not changed

bool begins(const char* text, const char* with) { return strncmp(text, with, strlen(with)) == 0; }

void shorten_openmp_spin(int, char** argv, char** envp) {
  static char* environment[kMaxEnvironment + 2];
  static char setting[] = "GOMP_SPINCOUNT=1000";
  int n = 0, unread = -1;
  for (; envp[n] != nullptr; ++n) {
    if (n >= kMaxEnvironment) return;
    if (begins(envp[n], "OMP_WAIT_POLICY=") || begins(envp[n], "GOMP_SPINCOUNT=")) return;
    if (begins(envp[n], "_=") || begins(envp[n], "OLDPWD="))
      unread = n;  // the last command of a shell, its last folder
    environment[n] = envp[n];
  }
  if (unread >= 0) {
    envp[unread] = setting;
    return;
  }
  environment[n] = setting;
  execve("/proc/self/exe", argv, environment);  // returns only on failure; then continue without it
}

__attribute__((section(".preinit_array"), used)) void (*const kShortenOpenmpSpin)(int, char**,
                                                                                  char**) = shorten_openmp_spin;

}  // namespace
