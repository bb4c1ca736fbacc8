// Byte pair encoding of one pre-token, over bytes or over characters. Built once, then read; const methods are
// thread-safe.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headrace/text/merge_table.h"
#include "headrace/text/vocabulary.h"

namespace headrace {

enum class WholeWords : uint8_t {
  kMerge,      // every pre-token is merged from its bytes
  kTakeFirst,  // a pre-token that is a token is that token, merges unseen (`ignore_merges`, Llama 3)
};

// Units of a word before its first merge.
enum class Alphabet : uint8_t {
  kBytes,       // bytes, each spelled as one printable character
  kCharacters,  // characters that the vocabulary has, and the bytes of others as "<0x00>" to "<0xFF>" (Gemma)
};

class Bpe {
 public:
  using Merges = std::vector<std::pair<std::string, std::string>>;  // by rank, in the spelling of tokenizer.json

  // `may_make` [vocabulary.size()] says which ids encode() may give: those of the model that are no special tokens. A
  // merge whose result it excludes is left out, so that no text can be merged into a special token. `vocabulary` is not
  // owned and outlives this object. Throws Error(kModelFile) if it lacks one of the 256 bytes (some text would have no
  // ids), or makes one special, and for a merge with a side or a result that it lacks.
  Bpe(const Vocabulary& vocabulary, std::vector<bool> may_make, const Merges& merges, WholeWords whole_words,
      Alphabet alphabet = Alphabet::kBytes);

  struct Symbol {
    int32_t id;
    int32_t previous, next;  // indices into the word; kNone at its ends
    bool merged_away;
  };
  struct Candidate {
    int32_t rank;
    int32_t left;  // index of the left symbol
    int32_t merged;
  };
  // Memory that encode() reuses from word to word; one per calling thread.
  struct Scratch {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of `word` (bytes, not spelled; valid UTF-8 over characters): of all neighbours that merge, those of
  // the lowest rank first, the leftmost of equals. n bytes take n log n time. Source: Sennrich et al. 2016, over bytes
  // as in GPT-2.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

 private:
  static constexpr int32_t kNone = -1;

  void start_word(std::string_view word, Scratch& scratch) const;  // one symbol per byte, and what merges at first
  void push_symbols(std::string_view word, Scratch& scratch) const;
  void merge_all(Scratch& scratch) const;
  void push_candidate(Scratch& scratch, int32_t left) const;

  const Vocabulary* vocabulary_;  // not owned
  std::vector<bool> may_make_;    // by id
  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  WholeWords whole_words_;
  Alphabet alphabet_;
};

}  // namespace headrace
