// A regular expression over the names of modules, as adapters state them.
#pragma once
#include <memory>
#include <string>
#include <string_view>

namespace headrace {

// Immutable: threads may share it, and copies share what was compiled.
class ModulePattern {
 public:
  // `where` stands in errors. Error kModelFile when `regex` does not compile.
  ModulePattern(std::string_view regex, std::string where);

  // True when the whole of `module` matches. Error kModelFile when that takes too many steps.
  bool match(std::string_view module) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace headrace
