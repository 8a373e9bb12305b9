// An unnamed file in the temporary folder (TMPDIR, otherwise /tmp) that disappears with the process. It holds state
// that would otherwise make memory grow with the work.
#pragma once

#include <cstddef>
#include <cstdint>

namespace oscar {

class TempFile {
 public:
  TempFile();  // EnvironmentError: the folder is not writable
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;

  std::uint64_t size() const { return size_; }
  void append(const void* data, std::size_t bytes);  // EnvironmentError: the disk is full
  // Reads a range that was written. EnvironmentError when it cannot be read.
  void read(std::uint64_t offset, void* data, std::size_t bytes) const;

 private:
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace oscar
