package history

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/avgpipe/avgpipe/internal/access"
)

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
