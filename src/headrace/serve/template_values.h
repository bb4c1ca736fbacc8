// JSON as chat templates read it.
#pragma once
#include "headrace/chat/template_value.h"

namespace headrace {

class JsonNode;

// Throws RequestError 400 for a number beyond 64 bits, and for a name that occurs twice in an object.
TemplateValue template_value(const JsonNode& node);

}  // namespace headrace
