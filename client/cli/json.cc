#include "cli/json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace attend::cli {

void JsonWriter::Separate() {
  if (need_comma_) text_ += ',';
  need_comma_ = false;
}

void JsonWriter::Open(std::string_view name, char bracket) {
  Separate();
  if (!name.empty()) Name(name);
  text_ += bracket;
  need_comma_ = false;
}

void JsonWriter::Close(char bracket) {
  text_ += bracket;
  need_comma_ = true;
}

void JsonWriter::Name(std::string_view name) {
  String(name);
  text_ += ':';
  need_comma_ = false;
}

void JsonWriter::String(std::string_view value) {
  text_ += '"';
  for (const char c : value) {
    const unsigned char u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\';
      text_ += c;
    } else if (u < 0x20 || u >= 0x7f) {
      // Bytes past ASCII come from a server; as escapes the document is valid whatever they are.
      absl::StrAppendFormat(&text_, "\\u%04x", u);
    } else {
      text_ += c;
    }
  }
  text_ += '"';
  need_comma_ = true;
}

void JsonWriter::Number(double value) {
  if (std::isfinite(value)) {
    absl::StrAppendFormat(&text_, "%.9g", value);
  } else {
    text_ += "null";
  }
  need_comma_ = true;
}

void JsonWriter::Integer(int64_t value) {
  absl::StrAppend(&text_, value);
  need_comma_ = true;
}

}  // namespace attend::cli
