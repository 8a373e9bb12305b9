// Compiled into every test and command of a sanitizer build, so that the sanitizers' options apply however a program is
// started. ASAN_OPTIONS in the environment adds to them.
extern "C" const char* __asan_default_options();

// allocator_may_return_null: LibTorch calls malloc for tensors of any size and converts a null pointer to an exception,
// which gives exit code 4. Without the option, AddressSanitizer would end the program. Failures of operator new stay
// errors.
// The run-time library looks this function up, so it must be visible outside the executable.
__attribute__((used, visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
