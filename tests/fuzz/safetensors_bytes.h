// Small safetensors files as byte strings, for seeds.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace oscar::fuzz {

class SafetensorsBytes {
 public:
  template <class T>
  void add(const std::string& name, const char* dtype, const std::vector<T>& values, std::string shape = {}) {
    if (shape.empty()) shape.append(1, '[').append(std::to_string(values.size())).append(1, ']');
    const std::size_t begin = data_.size();
    data_.resize(begin + values.size() * sizeof(T));
    std::memcpy(data_.data() + begin, values.data(), values.size() * sizeof(T));
    header_.append(header_.empty() ? "\"" : ",\"").append(name).append(R"(":{"dtype":")").append(dtype);
    header_.append(R"(","shape":)").append(shape).append(R"(,"data_offsets":[)").append(std::to_string(begin));
    header_.append(",").append(std::to_string(data_.size())).append("]}");
  }
  // metadata: the JSON object of the file's own.
  std::string str(const std::string& metadata) const {
    std::string header = R"({"__metadata__":)";  // appended: GCC 12 warns wrongly of literal + std::string
    header.append(metadata).append(1, ',').append(header_).append(1, '}');
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return bytes + header + data_;
  }

 private:
  std::string header_, data_;
};

}  // namespace oscar::fuzz
