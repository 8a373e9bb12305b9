// The name of a model as files record it and commands repeat it: one path component or org/name, of letters, digits,
// '.',
// '_' and '-'. The name is for people; which model it is, the fingerprint tells.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// Whether `name` is such a name: components are neither "." nor "..", do not start with '-', at most 200 bytes in all.
bool is_model_name(std::string_view name);

// A word of letters, digits, '_' and '-' that starts with a letter or digit, at most 64 bytes: ids of methods.
bool is_plain_word(std::string_view word);

// The nearest such name: what is not allowed becomes '-'. "" stays "".
std::string plain_model_name(std::string_view name);

// A name that was read from a file. "" stays "". Names of folders with spaces, '+' and the like or letters beyond
// ASCII, which were written as they are before, give their plain_model_name(); anything that a shell, a terminal or a
// path would act on is an InputError naming `where`.
std::string read_model_name(const std::string& name, const std::string& where);

}  // namespace oscar
