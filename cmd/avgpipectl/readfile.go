package main

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// readFile reads a file that the user names. One of more bytes than most is refused before it takes memory: it may be a device that
// never ends. The hint is what to do about it.
func readFile(path string, most int64, hint string) (text []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return readAll(f, path, most, hint)
}

// readAll reads what is called name, as readFile does.
func readAll(in io.Reader, name string, most int64, hint string) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("%s has more than %d bytes; %s", name, most, hint)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}
