package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// Until 0029 the log was raft.db, a bolt file as raft-boltdb writes it. It is copied once, and set aside.
const (
	walName  = "wal"
	boltName = "raft.db"
)

// boltLog is what such a file holds.
type boltLog struct {
	path    string
	entries []*raft.Log
	values  map[string][]byte // CurrentTerm, LastVoteTerm, LastVoteCand
}

// boltKeys are the values that Raft keeps.
var boltKeys = []string{"CurrentTerm", "LastVoteTerm", "LastVoteCand"}

// extent says what the log holds.
func (b *boltLog) extent() extent {
	e := extent{path: b.path, begun: b.values["CurrentTerm"] != nil}
	if n := len(b.entries); n > 0 {
		e.first, e.last = b.entries[0].Index, b.entries[n-1].Index
	}
	return e
}

// readBolt reads the file from end to end. bolt panics on some damaged pages, and faults beyond the end of the file.
func readBolt(path string) (log *boltLog, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("damaged: %v", p)
		}
		if err != nil {
			err = damagedLog(path, err)
		}
	}()
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := checkBolt(data); err != nil {
		return nil, err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return nil, err
	}
	log = &boltLog{path: path, values: map[string][]byte{}}
	err = db.View(log.read)
	return log, errors.Join(err, db.Close())
}

// read copies entries and values, and refuses what Raft does not know: a flipped bit in a name would make its value vanish.
func (b *boltLog) read(tx *bbolt.Tx) error {
	for name := range map[string]bool{"conf": true, "logs": true} {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("damaged: there is no bucket %q", name)
		}
	}
	err := tx.Bucket([]byte("conf")).ForEach(func(key, framed []byte) error {
		if !slices.Contains(boltKeys, string(key)) {
			return fmt.Errorf("damaged: value %q: expected one of %q", key, boltKeys)
		}
		if len(framed) < 4 || crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, framed[4:]) != binary.LittleEndian.Uint32(framed) {
			return fmt.Errorf("damaged: value %s has a wrong checksum", key)
		}
		b.values[string(key)] = slices.Clone(framed[4:])
		return nil
	})
	if err != nil {
		return err
	}
	return tx.Bucket([]byte("logs")).ForEach(func(key, value []byte) error {
		entry := &raft.Log{}
		if err := codec.NewDecoderBytes(slices.Clone(value), &codec.MsgpackHandle{}).Decode(entry); err != nil || len(key) != 8 {
			return fmt.Errorf("damaged: entry %x: %w", key, err)
		}
		if err := unframe(entry, binary.BigEndian.Uint64(key)); err != nil {
			return err
		}
		if last := b.extent().last; last > 0 && entry.Index != last+1 {
			return fmt.Errorf("damaged: entry %d follows entry %d", entry.Index, last)
		}
		b.entries = append(b.entries, entry)
		return nil
	})
}

// boltPages is a bolt file: every page starts with its number (8 bytes), flags (2), number of elements (2) and of further pages (4), in
// the byte order of the machine.
type boltPages struct {
	data        []byte
	size, count uint64
	free        map[uint64]bool
}

const (
	boltHeader   = 16
	boltBranch   = 1
	boltLeaf     = 2
	boltMeta     = 4
	boltFreelist = 16
)

// checkBolt finds the damage of a bolt file that bolt itself would take for an older or a shorter content: a wrong meta record, for
// which it takes the one of the transaction before, a wrong number of elements in a page, and a reference to a free page.
func checkBolt(data []byte) error {
	b, order := boltPages{data: data, free: map[uint64]bool{}}, binary.NativeEndian
	newest, freelist := uint64(0), uint64(0)
	for n := range uint64(2) { // a meta record: magic (4), version (4), size of a page (4); free list at 32, pages at 40, transaction, FNV-1a
		if uint64(len(data)) < b.size+boltHeader+64 {
			return fmt.Errorf("truncated: %d bytes, expected a meta record at %d", len(data), b.size+boltHeader)
		}
		meta, sum := data[b.size+boltHeader:], fnv.New64a()
		sum.Write(meta[:56]) // never fails, by its contract
		if sum.Sum64() != order.Uint64(meta[56:]) || order.Uint32(meta) != 0xED0CDAED || order.Uint32(meta[8:]) < 512 || !b.is(b.size, n, boltMeta) {
			return fmt.Errorf("damaged: meta record %d, or its checksum", n)
		}
		if transaction := order.Uint64(meta[48:]); transaction >= newest {
			newest, freelist = transaction, order.Uint64(meta[32:])
		}
		b.size, b.count = uint64(order.Uint32(meta[8:])), max(b.count, order.Uint64(meta[40:]))
	}
	if found := uint64(len(data)) / b.size; found < b.count || b.count > 1<<32 || freelist >= b.count || !b.is(freelist*b.size, freelist, boltFreelist) {
		return fmt.Errorf("truncated or damaged: it has %d pages of %d bytes, expected %d, page %d with the free ones", found, b.size, b.count, freelist)
	}
	body := data[freelist*b.size:]
	total, body := uint64(order.Uint16(body[10:])), body[boltHeader:]
	if total == 0xFFFF { // too many for the header: the first number is how many follow
		total, body = order.Uint64(body), body[8:]
	}
	if total > min(b.count, uint64(len(body))/8) {
		return fmt.Errorf("damaged: %d of %d pages are free", total, b.count)
	}
	for i := range total {
		b.free[order.Uint64(body[8*i:])] = true
	}
	for n := uint64(2); n < b.count; n++ {
		page := data[n*b.size:]
		if order.Uint64(page) != n || b.free[n] { // the rest of a larger one
			continue
		}
		more := uint64(order.Uint32(page[12:]))
		if more >= b.count-n {
			return fmt.Errorf("damaged: page %d has %d more, of %d pages", n, more, b.count)
		}
		if err := b.check(n, page[:(more+1)*b.size]); err != nil {
			return err
		}
	}
	return nil
}

// is reports whether page n lies at the offset.
func (b *boltPages) is(offset, n uint64, flags uint16) bool {
	return binary.NativeEndian.Uint64(b.data[offset:]) == n && binary.NativeEndian.Uint16(b.data[offset+8:]) == flags
}

// check checks the elements of a page, and of the pages within it. Their headers, of 16 bytes each, are followed by keys and values,
// packed. A branch's header has the distance of its key (4), the key's length (4) and a page (8); a leaf's has flags (4), that distance,
// that length and the length of the value.
func (b *boltPages) check(n uint64, page []byte) error {
	order := binary.NativeEndian
	flags, count, body := order.Uint16(page[8:]), uint64(order.Uint16(page[10:])), page[boltHeader:]
	if flags != boltBranch && flags != boltLeaf {
		return nil
	}
	end := 16 * count
	if end > uint64(len(body)) || count == 0 && len(body) >= 16 && order.Uint64(body) != 0 {
		return fmt.Errorf("damaged: page %d says that it has %d elements in %d bytes", n, count, len(body))
	}
	for e := range count {
		head, from := body[16*e:][:16], end
		at := 16*e + uint64(order.Uint32(head[4*(flags-1):]))
		value := end + uint64(order.Uint32(head[4*flags:]))
		if end = value; flags == boltLeaf {
			end += uint64(order.Uint32(head[12:]))
		}
		if at != from || end > uint64(len(body)) {
			return fmt.Errorf("damaged: page %d: element %d of %d lies at %d to %d of %d bytes, expected from %d", n, e, count, at, end, len(body), from)
		}
		if flags == boltBranch || order.Uint32(head) == 1 {
			if err := b.refers(n, flags, head, body[value:end]); err != nil {
				return err
			}
		}
	}
	return nil
}

// refers checks what an element of page n refers to: a branch's to a page, a bucket's to its root page (8; then a sequence, 8) or, where
// that is 0, to a page that follows.
func (b *boltPages) refers(n uint64, flags uint16, head, value []byte) error {
	page := binary.NativeEndian.Uint64(head[8:])
	if flags == boltLeaf {
		if len(value) < 16 {
			return fmt.Errorf("damaged: page %d has a bucket of %d bytes", n, len(value))
		}
		page = binary.NativeEndian.Uint64(value)
		if small := value[16:]; len(small) >= boltHeader {
			if err := b.check(n, small); err != nil {
				return err
			}
		}
	}
	if b.free[page] || page >= b.count {
		return fmt.Errorf("damaged: page %d refers to page %d, which is free", n, page)
	}
	return nil
}

// migrate copies the log of an older program and sets its file aside. Interrupted after any step, it begins anew or goes on.
func (b *boltLog) migrate(logger hclog.Logger, interrupt func() error) error {
	dir := filepath.Dir(b.path)
	made, making := filepath.Join(dir, walName), filepath.Join(dir, walName+".tmp")
	rename := func(from, to string) func() error {
		return func() error { return errors.Join(os.Rename(from, to), checkpoint.OS.SyncDir(dir)) }
	}
	steps := []func() error{
		func() error { return os.RemoveAll(making) },
		func() error { return b.copy(making, logger) },
		func() error { return b.compare(making, logger) },
		rename(making, made),
		rename(b.path, b.path+".migrated"),
	}
	if _, err := os.Stat(made); err == nil { // only the last step is missing
		steps = []func() error{func() error { return b.compare(made, logger) }, steps[len(steps)-1]}
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return fmt.Errorf("migrate raft log %s to %s: %w", b.path, made, err)
		}
		if err := interrupt(); err != nil {
			return err
		}
	}
	return nil
}

// copy makes a new log of the old one.
func (b *boltLog) copy(dir string, logger hclog.Logger) (err error) {
	log, err := openLog(dir, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	for batch := range slices.Chunk(b.entries, 256) {
		if err := log.StoreLogs(batch); err != nil {
			return err
		}
	}
	for key, value := range b.values {
		if key != "LastVoteCand" { // numbers, which raft-wal keeps in the other order
			value = binary.LittleEndian.AppendUint64(nil, binary.BigEndian.Uint64(value))
		}
		if err := log.Set([]byte(key), value); err != nil {
			return err
		}
	}
	return nil
}

// compare opens the copy and holds it against the old log.
func (b *boltLog) compare(dir string, logger hclog.Logger) (err error) {
	log, err := openLog(dir, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	made, err := log.extent()
	if err != nil {
		return err
	}
	if old := b.extent(); old.first != made.first || old.last != made.last {
		return fmt.Errorf("the one holds entries %d to %d and the other %d to %d: move the older one away", old.first, old.last, made.first, made.last)
	}
	for _, entry := range b.entries {
		var copied raft.Log
		if err := log.GetLog(entry.Index, &copied); err != nil {
			return err
		}
		if copied.Term != entry.Term || copied.Type != entry.Type || string(copied.Data) != string(entry.Data) || string(copied.Extensions) != string(entry.Extensions) {
			return fmt.Errorf("they differ in entry %d: move the older one away", entry.Index)
		}
	}
	if len(b.values) != len(log.meta.record.Values) {
		return fmt.Errorf("the one has %d values and the other %d: move the older one away", len(b.values), len(log.meta.record.Values))
	}
	return nil
}
