// Tables of the fields of a request: each says how a field is read, what is expected, and its JSON schema. Included by
// the readers of requests alone, as json_body.h.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/serve/api_request.h"
#include "headrace/serve/json_body.h"

namespace headrace {

// `Request` has a member `params` if the table has a Number.
template <class Request>
struct RequestField {
  struct Flag {
    bool Request::*member;
  };
  struct Text {
    std::string Request::*member;
  };
  struct Number {
    double least, most;
    float SamplingParams::*member;
  };
  struct Integer {
    int64_t least, most;
    void (*set)(Request&, int64_t);
  };
  struct Other {
    std::string_view expected;
    void (*read)(Request&, const JsonNode&);
    std::string_view schema;
  };
  struct Ignored {};
  struct Refused {};  // unless it is false or an empty array

  std::string_view name;
  std::variant<Flag, Text, Number, Integer, Other, Ignored, Refused> kind;
  std::string_view otherwise = "";
};

// Throws RequestError 400 unless the value is false or an empty array.
void require_none(const JsonNode& value);

// The bounds of a number as JSON schema writes them.
std::string schema_of_number(double least, double most);
std::string schema_of_integer(int64_t least, int64_t most);

// Reads a member of the body by the field of its name, unless it is null; false if the table has none.
template <class Request>
bool read_field(std::span<const RequestField<Request>> table, Request& request, const JsonNode& node) {
  using Field = RequestField<Request>;
  struct Reader {
    Request& r;
    const JsonNode& node;
    void operator()(const typename Field::Flag& f) const { r.*f.member = node.flag(); }
    void operator()(const typename Field::Text& f) const { r.*f.member = node.text(); }
    void operator()(const typename Field::Number& f) const {
      if constexpr (requires { r.params; }) r.params.*f.member = static_cast<float>(node.number(f.least, f.most));
    }
    void operator()(const typename Field::Integer& f) const { f.set(r, node.integer(f.least, f.most)); }
    void operator()(const typename Field::Other& f) const { f.read(r, node); }
    void operator()(const typename Field::Ignored& /*f*/) const {}
    void operator()(const typename Field::Refused& /*f*/) const { require_none(node); }
  };
  for (const Field& field : table) {
    if (field.name != node.name()) continue;
    if (!node.is_null()) std::visit(Reader{request, node}, field.kind);
    return true;
  }
  return false;
}

// Appends the fields of a table.
template <class Request>
void describe_fields(std::span<const RequestField<Request>> table, std::vector<FieldDescription>& out) {
  using Field = RequestField<Request>;
  struct Describer {
    FieldDescription& d;
    void set(std::string expected, std::string schema) const {
      d.expected = std::move(expected), d.schema = std::move(schema);
    }
    void operator()(const typename Field::Flag& /*f*/) const { set("true or false", R"({"type": "boolean"})"); }
    void operator()(const typename Field::Text& /*f*/) const { set("a string", R"({"type": "string"})"); }
    void operator()(const typename Field::Number& f) const {
      set(str("a number from ", f.least, " to ", f.most), schema_of_number(f.least, f.most));
    }
    void operator()(const typename Field::Integer& f) const {
      set(str("an integer from ", f.least, " to ", f.most), schema_of_integer(f.least, f.most));
    }
    void operator()(const typename Field::Other& f) const { set(std::string(f.expected), std::string(f.schema)); }
    void operator()(const typename Field::Ignored& /*f*/) const { set("anything; it is ignored", "{}"); }
    void operator()(const typename Field::Refused& /*f*/) const {
      set("none: it is not supported", R"({"const": false})");
      d.is_supported = false;
    }
  };
  for (const Field& field : table) {
    FieldDescription& one = out.emplace_back();
    one.name = field.name, one.otherwise = field.otherwise;
    std::visit(Describer{one}, field.kind);
  }
}

// The fields that the APIs of OpenAI share.
std::span<const RequestField<ApiRequest>> common_fields();

// Readers of several tables.
void read_stop(ApiRequest& request, const JsonNode& stop);
void check_common(const ApiRequest& request);  // fields together

// A sentence about a field, RequestError 400, unless `holds`.
void require_field(bool holds, std::string_view param, const std::string& sentence);

}  // namespace headrace
