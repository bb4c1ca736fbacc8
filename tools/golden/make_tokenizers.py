#!/usr/bin/env python3
"""Makes the fixtures of the tokenizer tests: tiny tokenizers, strings, and the ids that the `tokenizers` package gives.

  pip install tokenizers==0.23.3
  tools/golden/make_tokenizers.py [--books DIR] --out tests/golden/tokenizers
  tools/golden/make_tokenizers.py --out tests/golden/tokenizers --show llama3 123   what the package says of a string

Per family a BPE of about 2,300 tokens is trained with the normalizer, pattern and post-processor of the released
models: byte-level, but for Gemma's, which is over characters with bytes to fall back on. Only with --books are tokenizers
trained and strings drawn anew; without it those of --out are read. Of Gemma's alphabet the trainer may drop other characters
each time, where several are as rare as the last that it keeps. Files (little endian):
  <family>.json   tokenizer.json
  deepseek_coder  the vocabulary of llada.json behind DeepSeek-Coder's steps, and an unk_token
  dream/          vocab.json, merges.txt and tokenizer_config.json of the tokenizer in qwen2.json
  strings.bin     per string: u16 length, raw bytes; they need not be UTF-8
  lists.bin       per list of ids: u16 count, u16 draws; the texts of the ids need not be UTF-8
  <family>.bin    u16 size of the vocabulary; per string a u32 FNV-1a of its two lists of ids (without and with special tokens
                  read as text) as u16 count, u16 ids..., and of the first list's two texts (with and without special
                  tokens), one behind the other; per list of ids the u32 FNV-1a of its two texts. A draw is an odd number's
                  half, modulo the size, or an even one's, modulo 256.
The package sees a string as bytes.decode("utf-8", "replace"), which is what the C++ tokenizer promises.
"""

import argparse
import json
import pathlib
import random
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

NUM_STRINGS, NUM_LISTS, VOCAB = 20000, 2000, 2300
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
QWEN2 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN3_5 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
LLAMA3 = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL

LING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
SEED_CODER = CONTRACTIONS + r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + TAIL
FAMILIES = ("qwen2", "qwen3_5", "llama3", "gpt2", "llada", "llada2", "stable_diffcoder", "gemma")
BOS = {
    "llama3": "<|begin_of_text|>",
    "llada": "<|startoftext|>",
    "stable_diffcoder": "<[begin\u2581of\u2581sentence]>",
    "gemma": "<bos>",
}

WORDS = {
    "thai": "สวัสดี ภาษาไทย น้ำ ที่นี่ กำลัง ผู้หญิง เด็ก ก็ ไม่ ได้ เปลี่ยน ๑๒๓",
    "devanagari": "नमस्ते दुनिया हिन्दी क्षेत्र प्रार्थना कृष्ण ज्ञान स्त्री अँधेरा १२३ ड़ क़",
    "arabic": "مرحبا بالعالم العربية مُحَمَّدٌ السَّلامُ عَلَيْكُم كِتَابٌ ٱلْحَمْدُ لا ١٢٣",
    "hebrew": "שלום עולם בְּרֵאשִׁית עִבְרִית",
    "cjk": "你好 世界 人工智能 注意力 機械学習 日本語 ひらがな カタカナ ﾊﾝｶｸ 豈 著 \u2f800 龍 、 。 「引用」 ー",
    "hangul": "안녕 세계 한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8 가각 \u1100\u1161",
    "cyrillic": "привет мир ёлка й и\u0306 Ёж Їжак",
    "greek": "γειά κόσμε άνθρωπος ἄνθρωπος ᾧ Ω \u2126 σς",
    "vietnamese": "tiếng Việt được người Việt e\u0302\u0301 o\u031b\u0323",
    "latin": "café naïve Ångström \u212b cafe\u0301 n\u0303 a\u0328\u0301 q\u0307\u0323 q\u0323\u0307 \u017fſ ß ﬁ ﬆ İ ı ǆ",
    "tamil": "வணக்கம் தமிழ் கொ க\u0bc6\u0bbe",
    "misc": "Ω≈ç√∫ ½ ² Ⅷ ① ٣ 𝟙𝟚 𝐀𝐁 𝒳 € £ → ☃ № ™ … — – ‘quote’ “q” «g» ‚ ‹ \u00ad \u200b \u200d \ufeff \u180e \u2060",
}
EMOJI = [
    "😀",
    "👍🏽",
    "👨\u200d👩\u200d👧\u200d👦",
    "🏳️\u200d🌈",
    "🇩🇪🇫🇷",
    "❤️",
    "☺️",
    "1️⃣",
    "👩🏾\u200d🚀",
    "🧑\u200d🤝\u200d🧑",
    "🫠",
    "©️",
]
MARKS = [
    chr(c)
    for c in list(range(0x300, 0x340))
    + [0x345, 0x35C, 0x360, 0x5B0, 0x64B, 0x651, 0x93C, 0x94D, 0xE48, 0x20D0, 0x302A, 0x3099]
]
SPACES = [
    " ",
    " ",
    "  ",
    "\n",
    "\r\n",
    "\t",
    "\r",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u2028",
    "\u0085",
    "\u000b",
    "\f",
    "\n\n",
    "   ",
    "\u202f",
    "\u1680",
    "\u200b",
]
CODE = [
    "def f(x):\n    return x\n",
    "{\"a\": [1, 2.5e-3]}",
    "a+=b--;",
    "//==//",
    "x_1",
    "https://a.b/c?d=e&f",
    "I'm you'LL they'Ve 's 'Re don't 'ſ",
    "1234567",
    "3.14159",
    "0x1F",
    "#!$%^&*",
    "'''",
    "...",
    "``",
    "a\\b",
    "<<",
    ">>>",
    "|>",
    "<|",
]
ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "<|begin_of_text|>",
    "<mask>",
    "<sep>",
    "word",
    "<|im_",
    "<think><b>",
    "<b>",
    "<e\u0301>",
    "<\u00e9>",
    "A\u030a",
    "sub word",
    "[x]",
]


def added_tokens(family):
    """One list for all: the real ones, and one for every flag. Special first, then `special: false`."""

    def token(content, special, **flags):
        return AddedToken(content, special=special, normalized=flags.pop("normalized", False), **flags)

    bos = [token(BOS[family], True)] if family in BOS else []
    if family == "gemma":  # plain tokens that the model's own vocabulary has not
        bos += [token("\n\n", False), token("\u2581\u2581\u2581", False)]
    return bos + [
        token("<|endoftext|>", True, normalized=family == "gpt2"),
        token("<|im_start|>", True),
        token("<|im_end|>", True),
        token("<mask>", True, lstrip=True),
        token("<sep>", True, rstrip=True, normalized=family == "qwen2"),
        token("<think>", False),
        token("</think>", False),
        token("<tool_call>", False),
        token("<think><b>", False),
        token("<e\u0301>", False, normalized=True),
        token("[x]", False, single_word=True, lstrip=True, rstrip=True),
        token("word", False, single_word=True, normalized=family != "llama3"),
        token("sub word", True, single_word=True),
    ]


def template(tok, bos):
    return processors.TemplateProcessing(
        single=bos + " $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, tok.token_to_id(bos))]
    )


def build_gemma(files):
    """Over characters, with a token for each byte; spaces are U+2581."""
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.Replace(" ", "\u2581")
    tok.pre_tokenizer = pre_tokenizers.Split(Regex("\u2581*[^\u2581]+|\u2581+"), "isolated")
    tok.train_from_iterator(files, trainers.BpeTrainer(vocab_size=VOCAB, limit_alphabet=300, show_progress=False))
    file = json.loads(tok.to_str())
    first = ["<pad>", "<eos>", "<bos>", "<unk>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    trained = sorted(file["model"]["vocab"], key=file["model"]["vocab"].get)
    file["model"].update(
        vocab={token: i for i, token in enumerate(first + trained)},
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    tok = Tokenizer.from_str(json.dumps(file))
    tok.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    added = added_tokens("gemma")
    tok.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in first[:4]])
    tok.add_special_tokens([t for t in added if t.special])
    tok.add_tokens([t for t in added if not t.special])
    tok.post_processor = template(tok, BOS["gemma"])
    return tok


def build(family, files):
    if family == "gemma":
        return build_gemma(files)
    tok = Tokenizer(models.BPE(ignore_merges=family == "llama3"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if family == "gpt2":
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    else:
        pattern = {
            "qwen2": QWEN2,
            "qwen3_5": QWEN3_5,
            "llama3": LLAMA3,
            "llada": LING,
            "llada2": LING,
            "stable_diffcoder": SEED_CODER,
        }[family]
        split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
        tok.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if family.startswith("qwen"):
        tok.normalizer = normalizers.NFC()
    elif family.startswith("llada"):
        tok.normalizer = normalizers.Sequence([])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tok.train_from_iterator(files, trainer)
    added = added_tokens(family)
    tok.add_special_tokens([t for t in added if t.special])
    tok.add_tokens([t for t in added if not t.special])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    if family in BOS:
        tok.post_processor = processors.Sequence(
            [processors.ByteLevel(trim_offsets=False), template(tok, BOS[family])]
        )
    return tok


def training_text(books, rng):
    text = [p.read_text(encoding="utf-8")[20000:220000] for p in sorted(books.glob("*.txt"))]
    lines = [line for t in text for line in t.split("\n\n")]
    for words in WORDS.values():
        choices = words.split(" ")
        lines += [" ".join(rng.choices(choices, k=8)) for _ in range(60)]
    return lines + CODE * 20 + EMOJI * 10


def random_char(rng):
    while True:
        c = rng.choice([rng.randrange(0x80), rng.randrange(0x3000), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def make_string(rng, book):
    def snippet(longest):
        at = rng.randrange(len(book) - longest)
        return book[at : at + rng.randint(1, longest)]

    def words():
        choices = rng.choice(list(WORDS.values())).split(" ")
        return rng.choice([" ", "", " "]).join(rng.choices(choices, k=rng.randint(1, 3)))

    pieces = {
        "book": lambda: snippet(24),
        "words": words,
        "emoji": lambda: rng.choice(EMOJI),
        "code": lambda: rng.choice(CODE),
        "spaces": lambda: "".join(rng.choices(SPACES, k=rng.randint(1, 4))),
        "added": lambda: rng.choice(ADDED),
        "marks": lambda: rng.choice("aeoqสก가ا1 .") + "".join(rng.choices(MARKS, k=rng.randint(1, 4))),
        "chars": lambda: "".join(random_char(rng) for _ in range(rng.randint(1, 5))),
        "new": lambda: "".join(
            rng.choices("\U0002ebf0\U00031350\U0001e030\U000105c0\U00010d40\U00016d70\U000116d0", k=rng.randint(1, 3))
        ),
        "digits": lambda: str(rng.randrange(10 ** rng.randint(1, 9))),
        "bytes": lambda: rng.randbytes(rng.randint(1, 8)),
        "cut": lambda: words().encode()[:-1],
        "surrogate": lambda: rng.choice(
            [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80", b"\xf0\x9f\x98", b"\xe0\x80\x80", b"\xff"]
        ),
    }
    weights = [8, 8, 3, 3, 5, 5, 4, 3, 0.3, 2, 1, 0.5, 0.5]
    count = rng.choices([1, 2, 3, 4, 60], weights=[30, 30, 20, 10, 0.15])[0]
    out = b""
    for kind in rng.choices(list(pieces), weights=weights, k=count):
        piece = pieces[kind]()
        out += piece if isinstance(piece, bytes) else piece.encode("utf-8")
    return out


def deepseek_coder(file):
    """The tokenizer of `file`, a tokenizer.json, with other steps."""
    split = lambda regex: pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False)
    patterns = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"]
    file["model"]["unk_token"] = "<|endoftext|>"
    tok = Tokenizer.from_str(json.dumps(file))
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [split(p) for p in patterns]
        + [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def fnv1a(text):
    h = 0x811C9DC5
    for byte in text if isinstance(text, bytes) else text.encode("utf-8"):
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


def packed(items):
    return struct.pack(f"<H{len(items)}H", len(items), *items)


def lists_of(tok, strings):
    """The ids of each string, and those with special tokens read as text."""
    texts = [s.decode("utf-8", "replace") for s in strings]
    tok.encode_special_tokens = True
    as_text = [e.ids for e in tok.encode_batch(texts)]
    tok.encode_special_tokens = False
    return [(e.ids, plain) for e, plain in zip(tok.encode_batch(texts), as_text)]


def texts_of(tok, ids):
    return [tok.decode(ids, skip_special_tokens=skip) for skip in (False, True)]


def golden(tok, strings, lists):
    size = tok.get_vocab_size()
    hashed = [packed(ids) + packed(as_text) + "".join(texts_of(tok, ids)).encode() for ids, as_text in lists_of(tok, strings)]
    for draws in lists:
        hashed.append("".join(texts_of(tok, [draw // 2 % (size if draw % 2 else 256) for draw in draws])).encode())
    return struct.pack("<H", size) + b"".join(struct.pack("<I", fnv1a(data)) for data in hashed)


def read_strings(path):
    data, strings, at = path.read_bytes(), [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<H", data, at)
        strings.append(data[at + 2 : at + 2 + length])
        at += 2 + length
    return strings


def save_slow(tok, folder):
    """The files of a slow tokenizer, as Dream has them."""
    file = json.loads(tok.to_str())
    folder.mkdir(exist_ok=True)
    write = lambda name, text: (folder / name).write_text(text, encoding="utf-8")
    compactly = dict(ensure_ascii=False, separators=(",", ":"))
    write("vocab.json", json.dumps(file["model"]["vocab"], **compactly))
    merges = file["model"]["merges"]
    write("merges.txt", "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges))
    added = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in file["added_tokens"]}
    config = dict(add_prefix_space=False, added_tokens_decoder=added, bos_token=None, tokenizer_class="DreamTokenizer")
    write("tokenizer_config.json", json.dumps(config, **compactly))


def train(books, out):
    rng = random.Random(1)
    lines = training_text(books, rng)
    book = (books / "Grimms-Fairy-Tales.txt").read_text(encoding="utf-8")[5000:300000]
    fixed = [
        b"",
        b" ",
        b"\n",
        b"a" * 3000,
        b" " * 700 + b"x",
        "é".encode() * 300,
        "e\u0301".encode() * 300,
        b"\r\n" * 99,
    ]
    strings = fixed + [make_string(rng, book) for _ in range(NUM_STRINGS - len(fixed))]
    (out / "strings.bin").write_bytes(b"".join(struct.pack("<H", len(s)) + s for s in strings))
    for family in FAMILIES:
        tok = build(family, lines)
        if family == "qwen2":
            save_slow(tok, out / "dream")
        file = json.loads(tok.to_str())
        if family == "gpt2":  # the older spelling of merges
            file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
        text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
        (out / f"{family}.json").write_text(text, encoding="utf-8")
    coder = json.loads(deepseek_coder(json.loads((out / "llada.json").read_text(encoding="utf-8"))).to_str())
    text = json.dumps(coder, ensure_ascii=False, separators=(",", ":"))
    (out / "deepseek_coder.json").write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=pathlib.Path, help="a folder of .txt files")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--show", nargs=2, metavar=("FAMILY", "STRING"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.books:
        train(args.books, args.out)
    strings = read_strings(args.out / "strings.bin")
    if args.show:
        tok, string = Tokenizer.from_file(str(args.out / f"{args.show[0]}.json")), strings[int(args.show[1])]
        for ids in lists_of(tok, [string])[0]:
            print(string, *(f"{i}={tok.id_to_token(i)}" for i in ids), *map(repr, texts_of(tok, ids)))
        return
    rng = random.Random(2)
    lists = [[rng.randrange(1 << 16) for _ in range(rng.randint(1, 12))] for _ in range(NUM_LISTS)]
    (args.out / "lists.bin").write_bytes(b"".join(map(packed, lists)))
    for family in (*FAMILIES, "deepseek_coder"):
        tok = Tokenizer.from_file(str(args.out / f"{family}.json"))
        (args.out / f"{family}.bin").write_bytes(golden(tok, strings, lists))
        print(family, tok.get_vocab_size())


if __name__ == "__main__":
    main()
