// Writes one JSON document; enough for results, not a library. Numbers that are not finite become
// null, as JSON has no word for them. Not thread-safe.

#ifndef ATTEND_CLIENT_CLI_JSON_H_
#define ATTEND_CLIENT_CLI_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace attend::cli {

class JsonWriter {
 public:
  // With a name inside an object, without one inside an array or at the top.
  void BeginObject(std::string_view name = {}) { Open(name, '{'); }
  void EndObject() { Close('}'); }
  void BeginArray(std::string_view name = {}) { Open(name, '['); }
  void EndArray() { Close(']'); }

  template <typename T>
  void Field(std::string_view name, const T& value) {
    Separate();
    Name(name);
    Value(value);
  }
  template <typename T>
  void Element(const T& value) {
    Separate();
    Value(value);
  }

  const std::string& text() const { return text_; }

 private:
  void Open(std::string_view name, char bracket);
  void Close(char bracket);
  void Separate();
  void Name(std::string_view name);
  void String(std::string_view value);
  void Number(double value);
  void Integer(int64_t value);

  template <typename T>
  void Value(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      text_ += value ? "true" : "false";
      need_comma_ = true;
    } else if constexpr (std::is_floating_point_v<T>) {
      Number(value);
    } else if constexpr (std::is_integral_v<T>) {
      Integer(static_cast<int64_t>(value));
    } else {
      String(value);
    }
  }

  std::string text_;
  bool need_comma_ = false;
};

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_JSON_H_
