// A Hugging Face cache built by hand: blobs, snapshots of relative links into them, refs.
#pragma once

#include <cstdlib>
#include <string>

#include "base/files.h"
#include "support/temp_directory.h"

namespace oscar {

// Sets an environment variable (nullptr: removes it) and puts the old state back at the end of the scope.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old, had_ = true;
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  }
  ~ScopedVariable() { had_ ? ::setenv(name_.c_str(), old_.c_str(), 1) : ::unsetenv(name_.c_str()); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  std::string name_, old_;
  bool had_ = false;
};

class HubCache {
 public:
  explicit HubCache(const fs::path& hub) : hub_(hub) {}
  fs::path repository(const std::string& folder) const { return hub_ / folder; }
  // Stores `content` as a blob and links it from the snapshot.
  void add(const std::string& folder, const std::string& commit, const std::string& file, const std::string& content) {
    const fs::path blobs = repository(folder) / "blobs", snapshot = repository(folder) / "snapshots" / commit;
    fs::create_directories(blobs);
    fs::create_directories(snapshot);
    const std::string blob = "b" + std::to_string(count_++);
    write_file_atomic(blobs / blob, content);
    fs::create_symlink(fs::path("../../blobs") / blob, snapshot / file);
  }
  void set_ref(const std::string& folder, const std::string& revision, const std::string& text) {
    const fs::path ref = repository(folder) / "refs" / revision;
    fs::create_directories(ref.parent_path());
    write_file_atomic(ref, text);
  }

 private:
  fs::path hub_;
  int count_ = 0;
};

}  // namespace oscar
