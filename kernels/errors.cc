#include "kernels/errors.h"

#include <charconv>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace attend {
namespace {

// Keys of the payloads. Only this file knows them.
constexpr char kFieldPayload[] = "attend/field";
constexpr char kReasonPayload[] = "attend/reason";
constexpr char kRetryAfterPayload[] = "attend/retry_after_ms";

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

absl::Status WithPayload(absl::Status status, const char* key, std::string_view value) {
  if (!status.ok()) status.SetPayload(key, absl::Cord(ToAbsl(value)));
  return status;
}

std::optional<std::string> PayloadOf(const absl::Status& status, const char* key) {
  const absl::optional<absl::Cord> payload = status.GetPayload(key);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

}  // namespace

absl::Status InvalidField(std::string_view field, std::string_view what) {
  return WithField(absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), ": ", ToAbsl(what))),
                   field);
}

absl::Status UnsupportedOption(std::string_view option, std::string_view what) {
  return WithField(absl::UnimplementedError(absl::StrCat(ToAbsl(option), ": ", ToAbsl(what))),
                   option);
}

absl::Status WithField(absl::Status status, std::string_view field) {
  return WithPayload(std::move(status), kFieldPayload, field);
}

absl::Status WithReason(absl::Status status, std::string_view reason) {
  return WithPayload(std::move(status), kReasonPayload, reason);
}

absl::Status WithRetryAfter(absl::Status status, std::chrono::milliseconds delay) {
  return WithPayload(std::move(status), kRetryAfterPayload, std::to_string(delay.count()));
}

std::optional<std::string> FieldOf(const absl::Status& status) {
  return PayloadOf(status, kFieldPayload);
}

std::optional<std::string> ReasonOf(const absl::Status& status) {
  return PayloadOf(status, kReasonPayload);
}

std::optional<std::chrono::milliseconds> RetryAfterOf(const absl::Status& status) {
  const std::optional<std::string> text = PayloadOf(status, kRetryAfterPayload);
  if (!text.has_value()) return std::nullopt;
  int64_t milliseconds = 0;
  const auto [end, error] =
      std::from_chars(text->data(), text->data() + text->size(), milliseconds);
  if (error != std::errc() || end != text->data() + text->size()) return std::nullopt;
  return std::chrono::milliseconds(milliseconds);
}

}  // namespace attend
