// The name of a model, as files record it and commands repeat it. It is one path component or org/name, made of
// letters, digits, '.', '_' and '-'. The name is for people; the fingerprint identifies the model.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// Whether `name` is valid: at most 200 bytes in all; no component is "." or ".." or starts with '-'.
bool is_model_name(std::string_view name);

// A word of letters, digits, '_' and '-' that starts with a letter or digit, at most 64 bytes. Method ids have this
// form.
bool is_plain_word(std::string_view word);

// The nearest valid name: replaces invalid characters with '-'. "" stays "".
std::string plain_model_name(std::string_view name);

// A name read from a file: "" or a valid one. InputError naming `where` for any other.
std::string read_model_name(const std::string& name, const std::string& where);

}  // namespace oscar
