// Learns a vocabulary from text and returns it in the form of Hugging Face's tokenizer.json: byte-level BPE as GPT-2 has
// (Sennrich et al. 2016, Radford et al. 2019), lower-case WordPiece as BERT has (Devlin et al. 2019), and whole words.

// How often each word occurs, words as the tokenizer will cut them.
function counts(words) {
  const table = new Map()
  for (const word of words) table.set(word, (table.get(word) ?? 0) + 1)
  return table
}

// learn merges the most frequent neighbours (Sennrich et al. 2016, algorithm 1) until there are `merges` of them: words maps
// a word to its count, cut a word to its first symbols, join two symbols to one. It returns [left, right, joined]
// for each. Of equal counts the first in order of code points wins, so that a text always gives the same vocabulary.
function learn(words, cut, join, merges) {
  const list = [...words].map(([word, count]) => ({ symbols: cut(word), count }))
  const pairs = new Map() // "left right" -> its count and the words it occurs in
  const add = (word, index, sign) => {
    for (let i = 0; i + 1 < word.symbols.length; i++) {
      const key = word.symbols[i] + ' ' + word.symbols[i + 1]
      if (!pairs.has(key)) pairs.set(key, { count: 0, where: new Set() })
      const pair = pairs.get(key)
      pair.count += sign * word.count
      if (sign > 0) pair.where.add(index)
      else if (pair.count === 0) pairs.delete(key)
    }
  }
  list.forEach((word, index) => add(word, index, 1))
  const learned = []
  while (learned.length < merges && pairs.size > 0) {
    let best = null
    let most = 0
    for (const [key, { count }] of pairs) {
      if (count > most || (count === most && key < best)) [best, most] = [key, count]
    }
    const [left, right] = best.split(' ')
    const joined = join(left, right)
    for (const index of pairs.get(best).where) {
      const word = list[index]
      add(word, index, -1)
      word.symbols = merge(word.symbols, left, right, joined)
      add(word, index, 1)
    }
    learned.push([left, right, joined])
  }
  return learned
}

function merge(symbols, left, right, joined) {
  const out = []
  for (let i = 0; i < symbols.length; i++) {
    const both = symbols[i] === left && symbols[i + 1] === right
    out.push(both ? joined : symbols[i])
    if (both) i++
  }
  return out
}

// byteNames is GPT-2's printable stand-in for each byte: itself where that can be seen, else a character from U+0100 on.
function byteNames() {
  let next = 256
  const seen = (b) => (b > 32 && b < 127) || (b > 160 && b < 256 && b !== 173)
  return Array.from({ length: 256 }, (_, b) => String.fromCodePoint(seen(b) ? b : next++))
}

const special = (content, id) => ({ id, content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: true })
const numbered = (tokens) => Object.fromEntries([...new Set(tokens)].map((token, id) => [token, id]))

// bytePairs learns byte-level BPE with `size` tokens, the special ones first, then all bytes: it can write any text.
export function bytePairs(text, size, specials) {
  const bytes = byteNames()
  const pattern = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu
  const cut = (word) => [...Buffer.from(word)].map((b) => bytes[b])
  const learned = learn(counts(text.match(pattern)), cut, (a, b) => a + b, size - specials.length - bytes.length)
  const level = { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true }
  return {
    version: '1.0', truncation: null, padding: null, added_tokens: specials.map(special), normalizer: null,
    pre_tokenizer: level, post_processor: null, decoder: level,
    model: {
      type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false,
      vocab: numbered([...specials, ...bytes, ...learned.map(([, , joined]) => joined)]),
      merges: learned.map(([left, right]) => left + ' ' + right),
    },
  }
}

// wordPieces learns lower-case WordPiece with `size` tokens, BERT's special ones first. Pieces are learned as in BPE.
export function wordPieces(text, size) {
  const specials = ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
  const normal = text.normalize('NFD').replace(/\p{Mn}/gu, '').toLowerCase()
  const words = counts(normal.match(/[^\s\p{P}\p{S}]+|[\p{P}\p{S}]/gu))
  for (const [word, count] of words) if (count < 2) words.delete(word)
  const cut = (word) => [...word].map((letter, i) => (i ? '##' : '') + letter)
  const alphabet = [...new Set([...words.keys()].flatMap(cut))]
  const learned = learn(words, cut, (a, b) => a + b.slice(2), size - specials.length - alphabet.length)
  const cls = (name, id) => ({ SpecialToken: { id: name, type_id: id } })
  const part = (name, id) => ({ Sequence: { id: name, type_id: id } })
  const single = [cls('[CLS]', 0), part('A', 0), cls('[SEP]', 0)]
  return {
    version: '1.0', truncation: null, padding: null, added_tokens: specials.map(special),
    normalizer: { type: 'BertNormalizer', clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true },
    pre_tokenizer: { type: 'BertPreTokenizer' },
    post_processor: {
      type: 'TemplateProcessing', single, pair: [...single, part('B', 1), cls('[SEP]', 1)],
      special_tokens: Object.fromEntries(['[CLS]', '[SEP]'].map((name) => [name, { id: name, ids: [specials.indexOf(name)], tokens: [name] }])),
    },
    decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100,
      vocab: numbered([...specials, ...alphabet.sort(), ...learned.map(([, , joined]) => joined)]),
    },
  }
}

// wholeWords takes the `size` most frequent lower-case words, after "[UNK]" for all others and "</s>". It is WordPiece without pieces that go on.
export function wholeWords(text, size) {
  const specials = ['[UNK]', '</s>']
  const words = [...counts(text.toLowerCase().match(/\w+|[^\w\s]+/g))].sort(([a, n], [b, m]) => m - n || (a < b ? -1 : 1)).map(([word]) => word)
  return {
    version: '1.0', truncation: null, padding: null, added_tokens: specials.map(special), normalizer: { type: 'Lowercase' },
    pre_tokenizer: { type: 'Whitespace' }, post_processor: null, decoder: { type: 'WordPiece', prefix: '##', cleanup: true },
    model: {
      type: 'WordPiece', unk_token: '[UNK]', continuing_subword_prefix: '##', max_input_chars_per_word: 100,
      vocab: numbered([...specials, ...words].slice(0, size)),
    },
  }
}
