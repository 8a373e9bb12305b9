// Searches for a string in linear time (Knuth, Morris and Pratt 1977). For repetitive texts, std::string::find takes
// time proportional to the product of both lengths. Charges the scanned bytes to the budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace oscar::jinja {

class TextSearch {
 public:
  // `needle` must outlive the search. from_right: finds the last places first.
  explicit TextSearch(std::string_view needle, bool from_right = false);

  // The first place at or after `from`; npos if there is none.
  std::size_t find(std::string_view text, std::size_t from = 0) const;
  // The last place that ends at or before `end`; for a search with from_right.
  std::size_t find_before(std::string_view text, std::size_t end) const;

 private:
  template <typename At>
  std::size_t scan(std::size_t length, At at) const;
  char needle_at(std::size_t i) const { return from_right_ ? needle_[needle_.size() - 1 - i] : needle_[i]; }

  std::string_view needle_;
  bool from_right_;
  std::vector<std::uint32_t> border_;  // [needle]: length of the longest proper prefix that ends at this character
};

}  // namespace oscar::jinja
