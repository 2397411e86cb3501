#!/usr/bin/python3
"""Writes small tokenizer.json files, of the kinds that models are published with, into this directory.

The vocabularies are learnt from docs/design.md, simply and badly: they only have to exercise every path. record.mjs
records what the reference implementation makes of them.
"""
import base64, collections, json, math, os, re, struct

here = os.path.dirname(os.path.abspath(__file__))
text = open(os.path.join(here, "../../../../docs/design.md"), encoding="utf-8").read()[:12000] + " é ü ß 中 文 ①"


def special(tokens, first=0):
    return [dict(id=first + i, content=t, single_word=False, lstrip=t == "<mask>", rstrip=False, normalized=False, special=True)
            for i, t in enumerate(tokens)]


def write(name, added, model, normalizer=None, pre=None, post=None, decoder=None):
    with open(os.path.join(here, name + ".json"), "w", encoding="utf-8") as f:
        json.dump(dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=normalizer,
                       pre_tokenizer=pre, post_processor=post, decoder=decoder, model=model), f, ensure_ascii=False)
        f.write("\n")


def learn(words, merges):
    """The most frequent pair becomes one symbol, again and again; words are tuples of symbols with counts."""
    learned = []
    for _ in range(merges):
        pairs = collections.Counter()
        for w, n in words.items():
            for p in zip(w, w[1:]):
                pairs[p] += n
        if not pairs:
            break
        best = min(pairs, key=lambda p: (-pairs[p], p))
        learned.append(best)
        again = collections.Counter()
        for w, n in words.items():
            out, i = [], 0
            while i < len(w):
                if w[i:i + 2] == best:
                    out.append(w[i] + w[i + 1])
                    i += 2
                else:
                    out.append(w[i])
                    i += 1
            again[tuple(out)] += n
        words = again
    return learned


def byte_table():
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in keep]
    return {b: chr(b) for b in keep} | {b: chr(256 + i) for i, b in enumerate(rest)}


table = byte_table()
pieces = re.findall(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+(?!\S)|\s+", text)
merges = learn(collections.Counter(tuple(table[b] for b in p.encode()) for p in pieces), 250)
vocabulary = {t: i for i, t in enumerate([*table.values(), *(a + b for a, b in merges)])}
level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
bpe = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
           byte_fallback=False, ignore_merges=False, vocab=vocabulary, merges=[list(m) for m in merges])
n = len(vocabulary)

# As GPT-2 has it.
write("gpt2", special(["<|endoftext|>"], n), dict(bpe, merges=[" ".join(m) for m in merges]), pre=level, post=dict(level), decoder=dict(level))

# As RoBERTa has it: a mask that takes the blank before it along, and an added token that is text.
added = special(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], n)
added += [dict(id=n + 5, content="Stage", single_word=True, lstrip=False, rstrip=False, normalized=True, special=False)]
write("roberta", added, bpe, pre=dict(level, add_prefix_space=True), decoder=dict(level),
      post=dict(type="RobertaProcessing", sep=["</s>", n + 2], cls=["<s>", n], trim_offsets=True, add_prefix_space=True))

# As Llama 3 has it: a pattern, then bytes.
pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
write("llama3", special(["<|begin_of_text|>", "<|end_of_text|>"], n), dict(bpe, ignore_merges=True),
      pre=dict(type="Sequence", pretokenizers=[
          dict(type="Split", pattern=dict(Regex=pattern), behavior="Isolated", invert=False), dict(level, use_regex=False)]),
      post=dict(type="Sequence", processors=[dict(level), dict(
          type="TemplateProcessing", single=[dict(SpecialToken=dict(id="<|begin_of_text|>", type_id=0)), dict(Sequence=dict(id="A", type_id=0))],
          pair=[dict(SpecialToken=dict(id="<|begin_of_text|>", type_id=0)), dict(Sequence=dict(id="A", type_id=0)),
                dict(SpecialToken=dict(id="<|begin_of_text|>", type_id=1)), dict(Sequence=dict(id="B", type_id=1))],
          special_tokens={"<|begin_of_text|>": dict(id="<|begin_of_text|>", ids=[n], tokens=["<|begin_of_text|>"])})]),
      decoder=dict(level))

# As Llama 2 has it: the whole text is one word, and bytes stand for unknown characters.
marked = "▁" + text.replace(" ", "▁")
chars = sorted(set(re.sub(r"[^ -~\n▁]", "", marked)))
words = collections.Counter(tuple(w) for w in re.findall(r"▁*[^▁]+", marked) if set(w) <= set(chars))
merges2 = learn(words, 200)
tokens = ["<unk>", "<s>", "</s>", *("<0x%02X>" % b for b in range(256)), *chars, *(a + b for a, b in merges2)]
write("llama2", special(["<unk>", "<s>", "</s>"]),
      dict(bpe, unk_token="<unk>", fuse_unk=True, byte_fallback=True, vocab={t: i for i, t in enumerate(tokens)},
           merges=[" ".join(m) for m in merges2]),
      normalizer=dict(type="Sequence", normalizers=[dict(type="Prepend", prepend="▁"), dict(type="Replace", pattern=dict(String=" "), content="▁")]),
      post=dict(type="TemplateProcessing", single=[dict(SpecialToken=dict(id="<s>", type_id=0)), dict(Sequence=dict(id="A", type_id=0))],
                pair=[dict(SpecialToken=dict(id="<s>", type_id=0)), dict(Sequence=dict(id="A", type_id=0)),
                      dict(SpecialToken=dict(id="<s>", type_id=1)), dict(Sequence=dict(id="B", type_id=1))],
                special_tokens={"<s>": dict(id="<s>", ids=[1], tokens=["<s>"])}),
      decoder=dict(type="Sequence", decoders=[dict(type="Replace", pattern=dict(String="▁"), content=" "), dict(type="ByteFallback"),
                                              dict(type="Fuse"), dict(type="Strip", content=" ", start=1, stop=0)]))

# BPE of characters with a suffix at a word's end, and unknown characters that fuse.
plain = collections.Counter(re.findall(r"[a-zA-Z]+", text))
merges3 = learn(collections.Counter({tuple(w[:-1]) + (w[-1] + "</w>",): c for w, c in plain.items()}), 150)
letters = sorted({s for w in plain for s in (*w, w[-1] + "</w>")})
tokens = ["<unk>", *letters, *(a + b for a, b in merges3)]
write("suffix", special(["<unk>"]), dict(bpe, unk_token="<unk>", fuse_unk=True, end_of_word_suffix="</w>",
                                         vocab={t: i for i, t in enumerate(tokens)}, merges=[" ".join(m) for m in merges3]),
      normalizer=dict(type="NFKC"), pre=dict(type="Whitespace"), decoder=dict(type="BPEDecoder", suffix="</w>"))

# As BERT has it.
lowered = collections.Counter(re.findall(r"[a-z]+|[^\sa-z]", text.lower()))
letters = sorted({c for w in lowered for c in w})
wordpieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *("##" + c for c in letters if c.isalnum()),
              *(w for w, _ in sorted(lowered.items(), key=lambda i: (-i[1], i[0]))[:150] if len(w) > 1), "##ing", "##ed", "##er", "##tion"]
template = dict(type="TemplateProcessing",
                single=[dict(SpecialToken=dict(id="[CLS]", type_id=0)), dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id="[SEP]", type_id=0))],
                pair=[dict(SpecialToken=dict(id="[CLS]", type_id=0)), dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id="[SEP]", type_id=0)),
                      dict(Sequence=dict(id="B", type_id=1)), dict(SpecialToken=dict(id="[SEP]", type_id=1))],
                special_tokens={t: dict(id=t, ids=[i], tokens=[t]) for i, t in ((2, "[CLS]"), (3, "[SEP]"))})
wordpiece = dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100,
                 vocab={t: i for i, t in enumerate(dict.fromkeys(wordpieces))})
lowering = dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
write("bert", special(wordpieces[:5]), wordpiece, normalizer=lowering, pre=dict(type="BertPreTokenizer"), post=template,
      decoder=dict(type="WordPiece", prefix="##", cleanup=True))
write("bert-cased", special(wordpieces[:5]), wordpiece, normalizer=dict(lowering, lowercase=False), pre=dict(type="BertPreTokenizer"),
      post=dict(type="BertProcessing", sep=["[SEP]", 3], cls=["[CLS]", 2]), decoder=dict(type="WordPiece", prefix="##", cleanup=False))


def chars_map(replacements):
    """A double array (in the units of Darts-clone) of the replacements' bytes, each unit at the first place that fits."""
    texts, place = b"", {}
    for k, v in replacements.items():
        place[k.encode()] = len(texts)
        texts += v.encode() + b"\0"
    units, used = {0: 0}, {0}
    start = [(0, b"")]
    while start:
        at, prefix = start.pop(0)
        after = sorted({k[len(prefix)] for k in place if k.startswith(prefix) and len(k) > len(prefix)})
        leaf = prefix in place
        children = ([0] if leaf else []) + after
        offset = next(o for o in range(1, 1 << 20) if all((at ^ o ^ c) not in used for c in children))
        units[at] = units.get(at, 0) | offset << 10 | leaf << 8
        base = at ^ offset
        for c in children:
            used.add(base ^ c)
        if leaf:
            units[base] = 1 << 31 | place[prefix]
        for c in after:
            units[base ^ c] = c
            start.append((base ^ c, prefix + bytes([c])))
    size = (max(units) | 255) + 1
    array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(size))
    return base64.b64encode(struct.pack("<I", len(array)) + array + texts).decode()


# As T5 and XLM-RoBERTa have it: SentencePiece's replacements, then a unigram model.
counts = collections.Counter()
for w in re.findall(r"▁[^▁\n]*", marked.replace("\n", "▁")):
    for i in range(len(w)):
        for j in range(i + 1, min(len(w), i + 8) + 1):
            counts[w[i:j]] += 1
kept = {s for s in counts if len(s) == 1 and s.isascii() or s == "▁"} | {s for s, c in counts.items() if c >= 12}
total = sum(counts[s] * len(s) for s in kept)
entries = [["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0], ["<s>", 0.0]] + [[s, math.log(counts[s] * len(s) / total)] for s in sorted(kept)]
precompiled = dict(type="Precompiled", precompiled_charsmap=chars_map(
    {"Ａ": "A", "ﬁ": "fi", "①": "1", "\t": " ", "\n": " ", "\u00a0": " ", "e\u0301": "é", "İ": "I", "㍿": "ok"}))
for name, scheme, normal in (("unigram", "always", precompiled), ("unigram-first", "first", dict(type="Sequence", normalizers=[
        precompiled, dict(type="Strip", strip_left=False, strip_right=True), dict(type="Replace", pattern=dict(Regex=" {2,}"), content="▁")]))):
    space = dict(type="Metaspace", replacement="▁", prepend_scheme=scheme, split=True)
    write(name, special(["<pad>", "</s>", "<unk>", "<s>"]), dict(type="Unigram", unk_id=2, vocab=entries, byte_fallback=False), normalizer=normal,
          pre=space, decoder=dict(space),
          post=dict(type="TemplateProcessing", single=[dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id="</s>", type_id=0))],
                    pair=[dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id="</s>", type_id=0)),
                          dict(Sequence=dict(id="B", type_id=0)), dict(SpecialToken=dict(id="</s>", type_id=0))],
                    special_tokens={"</s>": dict(id="</s>", ids=[1], tokens=["</s>"])}))

# The other steps that cut words.
write("steps", special(["[UNK]"]), dict(wordpiece, unk_token="[UNK]", vocab={"[UNK]": 0} | {t: i + 1 for i, t in enumerate(
    t for t in dict.fromkeys(wordpieces) if t != "[UNK]")}),
      normalizer=dict(type="Sequence", normalizers=[dict(type="NFD"), dict(type="StripAccents"), dict(type="Lowercase"), dict(type="NFC")]),
      pre=dict(type="Sequence", pretokenizers=[
          dict(type="WhitespaceSplit"), dict(type="Digits", individual_digits=True), dict(type="Punctuation", behavior="MergedWithPrevious"),
          dict(type="Split", pattern=dict(String="-"), behavior="MergedWithNext", invert=False),
          dict(type="Split", pattern=dict(Regex="[aeiou]+y"), behavior="Contiguous", invert=True)]))
