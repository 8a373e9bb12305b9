// Compiled into every test and command of a sanitizer build: the sanitizers' options, wherever a program is started
// from. ASAN_OPTIONS in the environment adds to them.
extern "C" const char* __asan_default_options();

// allocator_may_return_null: LibTorch asks malloc for the memory of a tensor of any size and turns a null pointer into
// an exception, which becomes exit code 4; without the option AddressSanitizer ends the program there. Sizes asked of
// operator new stay an error.
// Resolved by the run-time library, so it has to be visible outside the executable.
__attribute__((used, visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
