// Records what the reference implementation makes of the tokenizers and texts of this directory:
//
//   npm install tokenizers@0.23.2 && node record.mjs
//
// For each tokenizer and text it writes a line: the ids of the text alone, as one text and as the first of a pair, and
// the text of the ids.
import fs from 'fs'
import { createRequire } from 'module'

const { Tokenizer } = createRequire(process.cwd() + '/')('tokenizers')
const here = new URL('.', import.meta.url)
const texts = JSON.parse(fs.readFileSync(new URL('texts', here), 'utf8'))
for (const file of fs.readdirSync(here).filter((f) => f.endsWith('.json'))) {
  const tokenizer = Tokenizer.fromFile(new URL(file, here).pathname)
  const lines = [JSON.stringify({ vocabulary: Math.max(...Object.values(tokenizer.getVocab(true))) + 1 })]
  for (const text of texts) {
    const ids = (await tokenizer.encode(text, null, { addSpecialTokens: false })).getIds()
    const single = await tokenizer.encode(text)
    const pair = await tokenizer.encode(text, 'the other')
    lines.push(JSON.stringify({
      text, ids, single: single.getIds(), pair: pair.getIds(), types: pair.getTypeIds(),
      decoded: ids.length > 0 ? await tokenizer.decode(ids, true) : '',
    }))
  }
  fs.writeFileSync(new URL(file.replace('.json', '.recorded'), here), lines.join('\n') + '\n')
}
