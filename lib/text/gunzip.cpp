#include "text/gunzip.h"

#include <zlib.h>

#include <algorithm>

#include "base/budget.h"
#include "base/errors.h"
#include "base/files.h"

namespace oscar {
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
