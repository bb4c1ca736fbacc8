// The pattern language of tokenizer.json (Oniguruma, Ruby syntax), written for PCRE2. Stateless.
#pragma once
#include <string>
#include <string_view>

namespace headrace {

// `regex` such that PCRE2 in UTF mode matches what Oniguruma does: `\s` is the property White_Space, `\d` is Nd, in and
// out of character classes. Only what means the same in both passes: groups (?: (?i: (?= (?!, classes, greedy, lazy and
// possessive quantifiers, general categories \p{L}, \p{Lu} (but for C, Cn, Mn). Throws Error(kUnsupported) naming
// anything else (anchors, \w, nested classes, scripts, verbs...): a near miss would give wrong ids without a word.
std::string pcre2_syntax(std::string_view regex);

}  // namespace headrace
