package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"time"

	"github.com/avgpipe/avgpipe/internal/access"
)

// The file: a header, then records of one size.
const (
	magic      = "AVGHISTO"
	version    = 1
	headerSize = 16
	recordSize = 152
)

// Kind says what a record is about.
type Kind uint8

// The kinds of record.
const (
	Step       Kind = 1 + iota // optimizer steps First to Last
	Evaluation                 // the center of Round, after First steps
	Commit                     // the shards of Round are durable
	Start                      // a worker begins at step First, from Round
)

// kindsEnd is one more than the greatest kind.
const kindsEnd = int(Start) + 1

// Metric indexes a record's values.
type Metric int

// The metrics. A Step has all of them, unless unknown; an Evaluation has the Loss.
const (
	Loss         Metric = iota // nats per target, mean over the batch
	LearningRate               // after its schedule
	GradientNorm               // over all stages, before clipping
	TokensPerS                 // of all pipelines, over the last seconds
	Metrics
)

// Stat is a value of one or more steps. All three are NaN while it is unknown.
type Stat struct{ Mean, Min, Max float64 }

// Unknown is the Stat of what was not measured.
var Unknown = Stat{math.NaN(), math.NaN(), math.NaN()}

// One is the Stat of a single value.
func One(v float64) Stat { return Stat{v, v, v} }

// Known reports whether there is a value.
func (s Stat) Known() bool { return !math.IsNaN(s.Mean) }

// Record is one entry of the file.
type Record struct {
	Kind        Kind
	First, Last uint64 // steps, counted from 0; of the other kinds, how many steps were done: First to Last once merged
	Round       uint64 // of a Step, the one that it belongs to
	Generation  uint64 // of the worker that wrote it
	Count       uint64 // how many records were merged into this one, itself included
	Time        time.Time
	Values      [Metrics]Stat
}

// Mark returns a record of a kind other than Step, without values.
func Mark(kind Kind, step, round, generation uint64, at time.Time) Record {
	r := Record{Kind: kind, First: step, Last: step, Round: round, Generation: generation, Count: 1, Time: at}
	for m := range r.Values {
		r.Values[m] = Unknown
	}
	return r
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is the start of every file.
func header() []byte {
	b := binary.LittleEndian.AppendUint32([]byte(magic), version)
	return binary.LittleEndian.AppendUint32(b, recordSize)
}

// checkHeader refuses what is no history, or one of another version.
func checkHeader(b []byte) error {
	switch {
	case len(b) < headerSize || string(b[:8]) != magic:
		return fmt.Errorf("not a history: it does not start with %s; move the file away, and a new one is begun", magic)
	case !bytes.Equal(b[:headerSize], header()):
		return fmt.Errorf("a history of version %d with records of %d bytes; this program reads version %d with %d",
			binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:]), version, recordSize)
	}
	return nil
}

// append adds the encoded record to b.
func (r *Record) append(b []byte) []byte {
	from := len(b)
	b = append(b, 0, 0, 0, 0, byte(r.Kind), 0, 0, 0)
	for _, v := range [...]uint64{r.First, r.Last, r.Round, r.Generation, r.Count, uint64(r.Time.UnixNano())} { //nolint:gosec // the bits are what is kept
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, s := range r.Values {
		for _, v := range [...]float64{s.Mean, s.Min, s.Max} {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
	}
	binary.LittleEndian.PutUint32(b[from:], crc32.Checksum(b[from+4:], castagnoli))
	return b
}

// decode reads a record. It reports false of one that is damaged, or that no writer writes.
func decode(b []byte) (Record, bool) {
	var r Record
	if len(b) != recordSize || binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli) {
		return r, false
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8+8*i:]) }
	r = Record{
		Kind: Kind(b[4]), First: word(0), Last: word(1), Round: word(2), Generation: word(3), Count: word(4),
		Time: time.Unix(0, int64(word(5))).UTC(), //nolint:gosec // as it was written
	}
	for m := range r.Values {
		value := func(i int) float64 { return math.Float64frombits(word(6 + 3*m + i)) }
		r.Values[m] = Stat{value(0), value(1), value(2)}
	}
	valid := r.Kind >= Step && int(r.Kind) < kindsEnd && r.First <= r.Last && r.Count >= 1 && b[5] == 0 && b[6] == 0 && b[7] == 0
	return r, valid
}

// MaxBytes bounds a file: about 27,000 records.
const MaxBytes = 4 << 20

// maxRecords is how many fit.
const maxRecords = (MaxBytes - headerSize) / recordSize

// Read reads a file. A file that is not there is an empty history. What a crash left at its end is not read; damaged is how many
// records before that cannot be read and are passed over.
func Read(path string) (records []Record, damaged int, err error) {
	records, damaged, _, err = load(path)
	return records, damaged, err
}

// load is Read, with the length of what is whole. A pipe or a device in the file's place is an error and is not opened: it could be
// waited for without end.
func load(path string) (records []Record, damaged int, good int64, err error) {
	text, err := (*access.Opener)(nil).ReadFile(path, 2*MaxBytes)
	if err == nil {
		records, damaged, good, err = parse(text)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, 0, 0, fmt.Errorf("read the history %s: %w", path, err)
	}
	return records, damaged, good, nil
}

// parse reads a file's bytes. good is the length of what is whole: up to the end of the last record that can be read.
func parse(text []byte) (records []Record, damaged int, good int64, err error) {
	if len(text) < headerSize && string(text) == string(header()[:len(text)]) {
		return nil, 0, 0, nil // the first write did not end
	}
	if err := checkHeader(text); err != nil {
		return nil, 0, 0, err
	}
	good = headerSize
	unread := 0
	for at := headerSize; at+recordSize <= len(text); at += recordSize {
		r, ok := decode(text[at : at+recordSize])
		if !ok {
			unread++
			continue
		}
		records, good = append(records, r), int64(at+recordSize)
		damaged, unread = damaged+unread, 0
	}
	return records, damaged, good, nil
}
