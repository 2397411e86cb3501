// English-German messages of the installed programs, from their gettext catalogues: gettext/train.jsonl and
// gettext/validation.jsonl, {"source", "target"} a line, and gettext/bpe.json, a tokenizer that was learned from both
// languages. Which programs are installed, and so what this makes, differs from machine to machine; the packages below make
// up for it where few are.
import { execFileSync } from 'node:child_process'
import fs from 'node:fs'
import path from 'node:path'
import { fail, jsonLines, say, shuffled, write } from './common.mjs'
import { bytePairs } from './tokenizer.mjs'

const directories = ['/usr/share/locale', '/usr/share/locale-langpack', '/usr/local/share/locale']
const packages = ['gettext', 'git', 'gcc-12-locales', 'binutils', 'bash', 'coreutils', 'dpkg-dev', 'gnupg-l10n', 'util-linux-locales', 'vim-runtime', 'wget', 'libgtk-3-common']
const fewest = 10000 // pairs that are worth training on
const mostWords = 8 // of a message: short ones, so that a small model learns from few steps

// catalogue reads the messages of a .mo file: its magic tells the byte order, then come the number of messages and where the
// tables of originals and translations begin, each a list of (length, offset).
function catalogue(file) {
  const bytes = fs.readFileSync(file)
  const little = bytes.length >= 28 && bytes.readUInt32LE(0) === 0x950412de
  if (!little && !(bytes.length >= 28 && bytes.readUInt32BE(0) === 0x950412de)) fail(`${file} is not a gettext catalogue`)
  const word = (at) => (little ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at))
  const text = (table, i) => bytes.subarray(word(table + 8 * i + 4), word(table + 8 * i + 4) + word(table + 8 * i))
  const [count, originals, translations] = [word(8), word(12), word(16)]
  const pairs = Array.from({ length: count }, (_, i) => [text(originals, i), text(translations, i)])
  const head = pairs.find(([original]) => original.length === 0)?.[1].toString('latin1') ?? ''
  const decoder = new TextDecoder(/charset=([\w-]+)/i.exec(head)?.[1] ?? 'utf-8')
  return pairs.map((pair) => pair.map((bytes) => decoder.decode(bytes)))
}

// clean is one message on one line: of plural forms the first, without context and keyboard accelerators.
const clean = (text) => text.split('\0')[0].split('\x04').pop().replace(/[_&~](?=[\p{L}])/gu, '').replace(/\s+/g, ' ').trim()
const words = (text) => text.split(' ').length

// useful drops what is not translated, not a sentence or too long.
const useful = ([source, target]) =>
  source !== target && /\p{L}{2}/u.test(source) && words(source) >= 2 && words(source) <= mostWords && words(target) <= 1.5 * mostWords &&
  target.length > 0 && !/[\t\\{}|]/.test(source + target)

function collect() {
  const pairs = new Map() // by source, so that held-out messages are not trained on as well
  let files = 0
  for (const directory of directories) {
    const german = path.join(directory, 'de', 'LC_MESSAGES')
    for (const file of fs.existsSync(german) ? fs.readdirSync(german).sort() : []) {
      if (!file.endsWith('.mo') || file.startsWith('iso_')) continue // iso-codes: lists of names
      files++
      for (const pair of catalogue(path.join(german, file)).map((pair) => pair.map(clean)).filter(useful)) {
        if (!pairs.has(pair[0])) pairs.set(pair[0], pair)
      }
    }
  }
  return { files, pairs: [...pairs.values()] }
}

let found = collect()
if (found.pairs.length < fewest && process.getuid() === 0 && fs.existsSync('/usr/bin/apt-get')) {
  say(`${found.pairs.length} pairs are few; installing packages that bring German messages`)
  const apt = (...words) => execFileSync('apt-get', ['-qq', ...words], { stdio: 'inherit', env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } })
  apt('update')
  apt('install', '-y', '--no-install-recommends', ...packages)
  found = collect()
}
if (found.pairs.length < fewest) {
  fail(`${found.pairs.length} English-German pairs below ${directories.join(', ')}; at least ${fewest} are needed. ` +
    `To get more: sudo apt-get install ${packages.join(' ')}, and allow /usr/share/locale/de in /etc/dpkg/dpkg.cfg.d`)
}
const rows = shuffled(found.pairs, ([source]) => source).map(([source, target]) => ({ source, target }))
const train = rows.slice(0, -1000)
write('gettext/train.jsonl', jsonLines(train))
write('gettext/validation.jsonl', jsonLines(rows.slice(-1000)))
write('gettext/bpe.json', JSON.stringify(bytePairs(train.map((row) => row.source + '\n' + row.target).join('\n'), 2048, ['<pad>', '<s>', '</s>'])))
say(`${found.pairs.length} pairs of ${found.files} catalogues`)
