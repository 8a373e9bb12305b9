#include "text/prompt_file.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "base/budget.h"
#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/interrupt.h"

namespace oscar {
namespace {

constexpr std::uint64_t kMaxPlain = std::uint64_t{1} << 32, kMaxExpanded = std::uint64_t{1} << 30;
// Text takes a third to a thirtieth of its size. A file that expands further is not text, except a small one.
constexpr std::uint64_t kMostTimes = 100, kSmall = std::uint64_t{64} << 20;

std::string expanded(const std::string& content, const std::string& where) {
  return gunzip(content, where, std::clamp(kMostTimes * content.size(), kSmall, kMaxExpanded));
}

std::string read_standard_input() {
  std::string content, block(1 << 16, '\0');
  while (true) {
    if (interrupt_requested()) throw InterruptedError("interrupted while stdin was read; run the command again");
    const ssize_t n = ::read(STDIN_FILENO, block.data(), block.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw InputError(std::string("stdin: cannot be read (") + std::strerror(errno) + ")");
    if (n == 0) return content;
    content.append(block, 0, static_cast<std::size_t>(n));
    if (content.size() > kMaxPlain) throw InputError("stdin: is larger than " + format_bytes(kMaxPlain));
  }
}

// A suffix in lower case: "P.JSONL" holds rows, too.
std::string suffix_of(const fs::path& file) {
  std::string suffix = file.extension().string();
  for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return suffix;
}

// Removes a UTF-8 byte order mark, which some editors write.
std::string without_mark(std::string content, const std::string& where) {
  if (content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF")) {
    throw InputError(where +
                     ": is UTF-16 (or UTF-32) by its byte order mark; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)");
  }
  if (content.starts_with("\xEF\xBB\xBF")) content.erase(0, 3);
  return content;
}

// How to convert a table to rows; empty for other files.
std::string table_advice(const fs::path& file) {
  const std::string kind = suffix_of(file);
  const bool feather = kind == ".arrow" || kind == ".feather", text = kind == ".csv" || kind == ".tsv";
  if (kind != ".parquet" && !feather && !text) return "";
  const std::string name = file.string();
  const bool plain = name.find_first_of("'\\\n") == std::string::npos && escape_text(name) == name;
  return "; two lines of Python convert it:\n  import pandas\n  pandas.read_" +
         std::string(text      ? "csv"
                     : feather ? "feather"
                               : "parquet") +
         "('" + (plain ? name : "FILE" + kind) + (kind == ".tsv" ? "', sep='\\t" : "") +
         "').to_json('prompts.jsonl', orient='records', lines=True, force_ascii=False)";
}

}  // namespace

PromptFile::Kind prompt_file_kind(const fs::path& file) {
  const std::string kind = suffix_of(suffix_of(file) == ".gz" ? file.stem() : file);
  if (kind == ".txt" || kind == ".md") return PromptFile::Kind::kDocument;
  if (kind == ".jsonl" || kind == ".ndjson") return PromptFile::Kind::kLines;
  if (kind == ".json") return PromptFile::Kind::kValues;
  std::string advice = table_advice(file);
  if (advice.empty()) advice = ", perhaps followed by .gz";
  throw InputError(file.string() + ": unknown kind of prompt file " + quote_name(file.extension().string()) +
                   ", expected .jsonl or .ndjson (one JSON row a line), .json (an array of rows), .txt or .md (one " +
                   "document)" + advice);
}

PromptFile read_prompt_file(const fs::path& file) {
  if (file == "-") {
    std::string content = read_standard_input();
    if (is_gzip(content)) content = expanded(content, "stdin");
    return {"stdin", "stdin", PromptFile::Kind::kLines, without_mark(std::move(content), "stdin")};
  }
  const PromptFile::Kind kind = prompt_file_kind(file);
  return {file.string(), file.filename().string(), kind, read_document(file)};
}

std::string read_document(const fs::path& file) {
  std::string content = read_file(file, kMaxPlain);
  if (suffix_of(file) == ".gz") content = expanded(content, file.string());
  return without_mark(std::move(content), file.string());
}

void require_different_files(const std::vector<fs::path>& files) {
  std::map<std::pair<dev_t, ino_t>, fs::path> seen;
  for (const fs::path& file : files) {
    struct stat info {};
    const int rc = file == "-" ? ::fstat(STDIN_FILENO, &info) : ::stat(file.c_str(), &info);
    if (rc != 0) continue;  // reading the file reports the reason
    const auto [at, fresh] = seen.emplace(std::pair(info.st_dev, info.st_ino), file);
    if (fresh) continue;
    throw UsageError(at->second == file ? file.string() + ": is given twice; name every prompt file once"
                                        : file.string() + " and " + at->second.string() +
                                              " are the same file; name every prompt file once");
  }
}

namespace {

class Inflater {
 public:
  Inflater() {
    constexpr int kGzipOnly = 16 + MAX_WBITS;
    if (inflateInit2(&stream, kGzipOnly) != Z_OK) throw EnvironmentError("zlib cannot start: out of memory");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  z_stream stream{};
};

}  // namespace

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string gunzip(std::string_view bytes, const std::string& where, std::uint64_t max_bytes) {
  if (!is_gzip(bytes)) throw InputError(where + ": is not a gzip file (it does not begin as one)");
  Inflater inflater;
  z_stream& in = inflater.stream;
  std::string content, block(1 << 18, '\0');
  std::size_t at = 0;  // of the bytes that zlib has not yet received
  while (true) {
    if (in.avail_in == 0 && at < bytes.size()) {
      const std::size_t some = std::min<std::size_t>(bytes.size() - at, 1 << 20);
      in.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data() + at));
      in.avail_in = static_cast<uInt>(some);
      at += some;
    }
    in.next_out = reinterpret_cast<Bytef*>(block.data());
    in.avail_out = static_cast<uInt>(block.size());
    const int rc = inflate(&in, Z_NO_FLUSH);
    const std::size_t made = block.size() - in.avail_out;
    Budget::spend(1000 + 4 * made);
    if (made > max_bytes - content.size()) {
      throw InputError(where + ": expands to more than " + format_bytes(max_bytes) +
                       "; decompress it first (gunzip), or split it into several files");
    }
    content.append(block, 0, made);
    if (rc == Z_STREAM_END) {
      const std::string_view rest = bytes.substr(at - in.avail_in);
      if (rest.find_first_not_of('\0') == std::string_view::npos) return content;  // some tools pad with zeros
      if (inflateReset(&in) != Z_OK) throw EnvironmentError("zlib cannot go on");
    } else if (rc == Z_BUF_ERROR && in.avail_in == 0 && at == bytes.size()) {
      throw InputError(where + ": the gzip file ends too early; it was not copied whole");
    } else if (rc != Z_OK && rc != Z_BUF_ERROR) {
      throw InputError(where + ": the gzip file is damaged");
    }
  }
}

}  // namespace oscar
