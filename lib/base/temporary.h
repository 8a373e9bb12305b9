// Names of unfinished outputs: "<output>.tmp.<32 hex digits>" beside the output. 16 digits are random; 16 follow from
// them and the output's name.
// The random digits separate processes that cannot see each other, such as two containers with equal process ids on one
// volume. The other digits distinguish these files from a user's files with similar names.
#pragma once

#include <filesystem>
#include <string>

namespace oscar {

namespace fs = std::filesystem;

fs::path temporary_path(const fs::path& path);  // a new name at each call

// Is `name` a temporary of a file or directory called `stem`?
bool is_temporary_of(const std::string& name, const std::string& stem);

// Locks an open temporary file (flock) until its descriptor is closed. The lock shows other processes that the run is
// alive. False when another process is removing the file: use another name.
bool lock_temporary(int fd);

// Removes temporary files of `path` whose runs have died. Never throws; files that it cannot remove stay.
void remove_stale_temporaries(const fs::path& path);

}  // namespace oscar
