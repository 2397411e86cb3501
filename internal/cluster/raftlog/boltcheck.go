package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"slices"
)

// checkBolt reads a bolt file from end to end and reports what is wrong with it, before bolt sees it. On a damaged page bolt panics, at
// times in a goroutine of its own; a damaged meta record makes it go back one transaction without a word, which
// forgets a committed entry. An absent or empty file is right: it has yet to be initialised.
func checkBolt(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(data) == 0) {
		return nil
	}
	if err != nil {
		return err
	}
	return checkBoltFile(data)
}

// The layout of a bolt file, version 2, in the byte order of the machine. Every page starts with a header: its number (8
// bytes), flags (2), count (2) and the number of pages that it extends over beyond the first (4).
const (
	boltPageHeader = 16
	boltMetaBytes  = 64 // the meta record, in pages 0 and 1, whose last 8 bytes are its checksum
	boltMagic      = 0xED0CDAED

	boltBranch   = 0x01
	boltLeaf     = 0x02
	boltFreelist = 0x10

	boltElement  = 16 // an element of a branch: offset of its key (4), its size (4), page (8); of a leaf: flags, offset, key, value size
	boltIsBucket = 1  // flag of a leaf's element: its value is a bucket
	boltBucket   = 16 // a bucket: its root page (8), or 0 when the page follows inline; a sequence number (8)
)

// boltMeta is what the check needs of a meta record.
type boltMeta struct {
	pageSize             uint64
	root, freelist, high uint64 // pages; high is one past the last in use
	transaction          uint64
}

// boltCheck walks one file.
type boltCheck struct {
	data   []byte
	meta   boltMeta
	used   []bool // by page, below meta.high
	bucket string // that it is in; empty at the top
}

// raftKeys are the names that Raft's stores use, by bucket, at the top the buckets. A flipped bit in one would make its value
// vanish, and Raft start as if it had never been. Log entries have the 8 bytes of their index.
var raftKeys = map[string][]string{
	"":     {"conf", "logs"},
	"conf": {"CurrentTerm", "LastVoteTerm", "LastVoteCand"},
}

// known checks a key against raftKeys.
func (c *boltCheck) known(key []byte, isBucket bool) error {
	ok := slices.Contains(raftKeys[c.bucket], string(key))
	if c.bucket == "logs" {
		ok = len(key) == 8
	}
	if !ok || isBucket != (c.bucket == "") {
		return fmt.Errorf("damaged: key %q in bucket %q: expected one of %q, or the index of an entry", key, c.bucket, raftKeys[c.bucket])
	}
	return nil
}

// checkBoltFile checks that both meta records are whole, and that every page in use is reached exactly once, from the root or
// from the list of free pages, and is well-formed. Bolt writes one meta record a transaction, within a disk sector; so one
// that is not whole is damage, not an interrupted write.
func checkBoltFile(data []byte) error {
	first, err := readBoltMeta(data, 0)
	if err != nil {
		return err
	}
	second, err := readBoltMeta(data, first.pageSize)
	if err != nil {
		return err
	}
	c := &boltCheck{data: data, meta: first}
	if second.transaction > first.transaction {
		c.meta = second
	}
	c.used = make([]bool, c.meta.high)
	c.used[0], c.used[1] = true, true
	if err := c.freelist(c.meta.freelist); err != nil {
		return err
	}
	if err := c.root(c.meta.root); err != nil {
		return err
	}
	for n, used := range c.used {
		if !used {
			return fmt.Errorf("damaged: page %d is neither in use nor free", n)
		}
	}
	return nil
}

// readBoltMeta checks the meta record of the page at offset, and that the file is as long as it says.
func readBoltMeta(data []byte, offset uint64) (boltMeta, error) {
	order := binary.NativeEndian
	if uint64(len(data)) < offset+boltPageHeader+boltMetaBytes {
		return boltMeta{}, fmt.Errorf("truncated: %d bytes, expected a meta record at %d", len(data), offset+boltPageHeader)
	}
	m := data[offset+boltPageHeader:][:boltMetaBytes]
	sum := fnv.New64a()
	sum.Write(m[:56]) // never fails, by its contract
	if found, expected := sum.Sum64(), order.Uint64(m[56:]); order.Uint32(m) != boltMagic || found != expected {
		return boltMeta{}, fmt.Errorf("damaged: the meta record at %d has checksum %016x, expected %016x",
			offset+boltPageHeader, found, expected)
	}
	meta := boltMeta{
		pageSize: uint64(order.Uint32(m[8:])), root: order.Uint64(m[16:]), freelist: order.Uint64(m[32:]),
		high: order.Uint64(m[40:]), transaction: order.Uint64(m[48:]),
	}
	if meta.pageSize < 512 || meta.high < 2 {
		return boltMeta{}, fmt.Errorf("damaged: %d pages of %d bytes", meta.high, meta.pageSize)
	}
	if found := uint64(len(data)) / meta.pageSize; found < meta.high {
		return boltMeta{}, fmt.Errorf("truncated: %d bytes hold %d pages of %d, expected %d", len(data), found, meta.pageSize, meta.high)
	}
	return meta, nil
}

// page marks a page as used and returns its content after the header, all pages that it extends over included.
func (c *boltCheck) page(n uint64) (flags uint16, count int, body []byte, err error) {
	if n >= c.meta.high {
		return 0, 0, nil, fmt.Errorf("damaged: page %d is referred to, the last is %d", n, c.meta.high-1)
	}
	order := binary.NativeEndian
	data := c.data[n*c.meta.pageSize:]
	if found := order.Uint64(data); found != n {
		return 0, 0, nil, fmt.Errorf("damaged: page %d says that it is page %d", n, found)
	}
	pages := uint64(order.Uint32(data[12:])) + 1
	if pages > c.meta.high-n {
		return 0, 0, nil, fmt.Errorf("damaged: page %d extends over %d pages, the last is %d", n, pages, c.meta.high-1)
	}
	for i := n; i < n+pages; i++ {
		if c.used[i] {
			return 0, 0, nil, fmt.Errorf("damaged: page %d is used twice", i)
		}
		c.used[i] = true
	}
	return order.Uint16(data[8:]), int(order.Uint16(data[10:])), data[boltPageHeader : pages*c.meta.pageSize], nil
}

// freelist marks the free pages as used.
func (c *boltCheck) freelist(n uint64) error {
	flags, count, body, err := c.page(n)
	if err != nil {
		return err
	}
	order := binary.NativeEndian
	total := uint64(count)
	if count == 0xFFFF && len(body) >= 8 { // too many for the header: the first number is how many follow
		total, body = order.Uint64(body), body[8:]
	}
	if flags != boltFreelist || total > uint64(len(body)/8) {
		return fmt.Errorf("damaged: page %d, the list of free pages, has flags %#x and %d entries", n, flags, total)
	}
	for i := range total {
		free := order.Uint64(body[8*i:])
		if free >= c.meta.high || c.used[free] {
			return fmt.Errorf("damaged: page %d is free and in use", free)
		}
		c.used[free] = true
	}
	return nil
}

// root checks the tree of pages of a bucket: its keys must ascend from the first leaf to the last.
func (c *boltCheck) root(n uint64) error {
	var last []byte
	return c.tree(n, &last)
}

// tree checks a page and those below it. last is the greatest key so far.
func (c *boltCheck) tree(n uint64, last *[]byte) error {
	flags, count, body, err := c.page(n)
	if err != nil {
		return err
	}
	switch flags {
	case boltLeaf:
		_, err := c.leaf(n, count, body, last)
		return err
	case boltBranch:
		return c.branch(n, count, body, last)
	}
	return fmt.Errorf("damaged: page %d has flags %#x", n, flags)
}

// boltItem is an element of a page: its flags (of a leaf) or page (of a branch), key and value.
type boltItem struct {
	flags      uint32
	page       uint64
	key, value []byte
}

// boltItems reads the elements of a page. Bolt packs them: element headers, then keys and values, in order and without gaps. That
// is checked too, for otherwise a smaller count would just lose the last ones. end is where they end.
func boltItems(n uint64, branch bool, count int, body []byte) (items []boltItem, end uint64, err error) {
	order := binary.NativeEndian
	end = uint64(count) * boltElement
	if end > uint64(len(body)) {
		return nil, 0, fmt.Errorf("damaged: page %d has %d elements in %d bytes", n, count, len(body))
	}
	for i := range count {
		at := uint64(i) * boltElement
		e := body[at:]
		var (
			item                         boltItem
			offset, keyBytes, valueBytes uint64
		)
		if branch {
			offset, keyBytes, item.page = uint64(order.Uint32(e)), uint64(order.Uint32(e[4:])), order.Uint64(e[8:])
		} else {
			item.flags, offset = order.Uint32(e), uint64(order.Uint32(e[4:]))
			keyBytes, valueBytes = uint64(order.Uint32(e[8:])), uint64(order.Uint32(e[12:]))
		}
		if at+offset != end || end+keyBytes+valueBytes > uint64(len(body)) {
			return nil, 0, fmt.Errorf("damaged: page %d: element %d lies at %d to %d, expected from %d and below %d",
				n, i, at+offset, at+offset+keyBytes+valueBytes, end, len(body))
		}
		item.key, item.value = body[end:end+keyBytes], body[end+keyBytes:end+keyBytes+valueBytes]
		end += keyBytes + valueBytes
		items = append(items, item)
	}
	if count == 0 && len(body) >= boltElement && !bytes.Equal(body[:boltElement], make([]byte, boltElement)) {
		return nil, 0, fmt.Errorf("damaged: page %d says that it is empty, and is not", n)
	}
	return items, end, nil
}

// ascend checks that key is greater than the greatest so far.
func (i boltItem) ascend(n uint64, last []byte) error {
	if last != nil && bytes.Compare(i.key, last) <= 0 {
		return fmt.Errorf("damaged: page %d: key %x after %x", n, i.key, last)
	}
	return nil
}

// branch checks the pages that a branch leads to. Its keys are the least of each.
func (c *boltCheck) branch(n uint64, count int, body []byte, last *[]byte) error {
	items, _, err := boltItems(n, true, count, body)
	if err != nil {
		return err
	}
	for _, item := range items {
		if err := item.ascend(n, *last); err != nil {
			return err
		}
		if err := c.tree(item.page, last); err != nil {
			return err
		}
	}
	return nil
}

// leaf checks keys and values, and the buckets among them. It returns where they end.
func (c *boltCheck) leaf(n uint64, count int, body []byte, last *[]byte) (end uint64, err error) {
	items, end, err := boltItems(n, false, count, body)
	if err != nil {
		return 0, err
	}
	for _, item := range items {
		if err := item.ascend(n, *last); err != nil {
			return 0, err
		}
		*last = item.key
		if item.flags > boltIsBucket {
			return 0, fmt.Errorf("damaged: page %d: key %x has flags %#x", n, item.key, item.flags)
		}
		if err := c.known(item.key, item.flags == boltIsBucket); err != nil {
			return 0, err
		}
		if item.flags == boltIsBucket {
			c.bucket = string(item.key)
			err := c.child(n, item.value)
			c.bucket = ""
			if err != nil {
				return 0, err
			}
		}
	}
	return end, nil
}

// child checks a bucket that is the value of an element of page n.
func (c *boltCheck) child(n uint64, value []byte) error {
	order := binary.NativeEndian
	if len(value) < boltBucket {
		return fmt.Errorf("damaged: page %d: a bucket of %d bytes", n, len(value))
	}
	if root := order.Uint64(value); root != 0 {
		return c.root(root)
	}
	inline := value[boltBucket:]
	if len(inline) < boltPageHeader || order.Uint16(inline[8:]) != boltLeaf || order.Uint32(inline[12:]) != 0 {
		return fmt.Errorf("damaged: page %d: an inline bucket without a leaf", n)
	}
	var last []byte
	inline, count := inline[boltPageHeader:], int(order.Uint16(inline[10:]))
	end, err := c.leaf(n, count, inline, &last)
	if err == nil && end != uint64(len(inline)) {
		err = fmt.Errorf("damaged: page %d: an inline bucket of %d bytes holds %d", n, len(inline), end)
	}
	return err
}
