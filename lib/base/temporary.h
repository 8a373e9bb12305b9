// Names of what is being built: "<output>.tmp.<32 hex digits>" beside the output, 16 random digits and 16 that follow
// from them and the output's name. The random ones keep apart processes that cannot see each other (two containers on
// one volume have equal process ids); the others tell our temporaries from files that people gave such a name.
#pragma once

#include <filesystem>
#include <string>

namespace oscar {

namespace fs = std::filesystem;

fs::path temporary_path(const fs::path& path);  // a new one at each call

// Is `name` a temporary of a file or directory called `stem`?
bool is_temporary_of(const std::string& name, const std::string& stem);

// An open temporary holds a lock (flock) until its descriptor is closed, so that others see that its run lives. False
// when somebody is removing it: take another name.
bool lock_temporary(int fd);

// Removes temporaries of `path` whose runs have died. Never throws: what cannot be removed stays.
void remove_stale_temporaries(const fs::path& path);

}  // namespace oscar
