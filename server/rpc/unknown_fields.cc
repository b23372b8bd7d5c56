#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "kernels/errors.h"
#include "server/rpc/request_codec.h"

namespace attend {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

absl::Status Refuse(const Message& message, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    const std::string field =
        absl::StrCat(path, path.empty() ? "" : ".", unknown.field(0).number());
    return WithReason(InvalidField(field, "this server does not know a field of that number"),
                      "UNKNOWN_FIELD");
  }
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    const std::string name = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    const int count = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const Message& inner = field->is_repeated() ? reflection.GetRepeatedMessage(message, field, i)
                                                  : reflection.GetMessage(message, field);
      if (absl::Status status = Refuse(inner, name); !status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefuseUnknownFields(const Message& message) { return Refuse(message, ""); }

}  // namespace attend
