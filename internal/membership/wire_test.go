package membership

import (
	"bytes"
	"errors"
	"testing"
)

func TestWhatANodeSaysOfItself(t *testing.T) {
	m := meta{leaving: true, commands: 65535, version: "v1.2.3"}
	if got, err := decodeMeta(append(m.encode(), "of a later program"...)); err != nil || got != m {
		t.Errorf("%+v, %v; want %+v", got, err, m)
	}
	for _, b := range [][]byte{nil, {1, 0, 0, 0}, {0, 0, 0, 0, 0}, {1, 0, 0, 0, 2, 'a'}} {
		if m, err := decodeMeta(b); !errors.Is(err, errMeta) {
			t.Errorf("%v is read as %+v, %v", b, m, err)
		}
	}
}

func TestADatagramIsForOneNodeOfOneCluster(t *testing.T) {
	key := bytes.Repeat([]byte{7}, 32)
	s, err := newSealer(Config{Key: key, Cluster: "c1", Oldest: 1, Newest: 1})
	if err != nil {
		t.Fatal(err)
	}
	sealed := s.seal([]byte("hello"), "n1")
	if len(sealed) != sealBytes+5 {
		t.Errorf("%d bytes", len(sealed))
	}
	if plain, err := s.open(sealed, "n1"); err != nil || string(plain) != "hello" {
		t.Errorf("%q, %v", plain, err)
	}
	otherKey, _ := newSealer(Config{Key: make([]byte, 32), Cluster: "c1", Oldest: 1, Newest: 1})
	otherCluster, _ := newSealer(Config{Key: key, Cluster: "c2", Oldest: 1, Newest: 1})
	damaged := bytes.Clone(sealed)
	damaged[len(damaged)-1] ^= 1
	later := bytes.Clone(sealed)
	later[0]++
	for what, c := range map[string]struct {
		by     *sealer
		packet []byte
		to     string
		want   error
	}{
		"another key":     {otherKey, sealed, "n1", ErrKey},
		"another cluster": {otherCluster, sealed, "n1", ErrKey},
		"another node":    {s, sealed, "n2", ErrKey},
		"damage":          {s, damaged, "n1", ErrKey},
		"a later format":  {s, later, "n1", ErrPacket},
		"nothing in it":   {s, s.seal(nil, "n1"), "n1", ErrPacket},
		"too long":        {s, s.seal(make([]byte, maxPacket), "n1"), "n1", ErrPacket},
	} {
		if _, err := c.by.open(c.packet, c.to); !errors.Is(err, c.want) {
			t.Errorf("%s: %v; want %v", what, err, c.want)
		}
	}
}

func FuzzMeta(f *testing.F) {
	f.Add(meta{commands: 3, version: "v1"}.encode())
	f.Add([]byte{1, 0, 0, 0, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeMeta(b); err == nil && !bytes.HasPrefix(b[2:], m.encode()[2:]) {
			t.Errorf("%v is read as %+v", b, m)
		}
	})
}

func FuzzPacket(f *testing.F) {
	s, err := newSealer(Config{Key: bytes.Repeat([]byte{7}, 16), Cluster: "c1", Oldest: 1, Newest: 2})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(s.seal([]byte("hello"), "n2"))
	f.Add([]byte{speaks(1, 1)})
	f.Add(make([]byte, sealBytes+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if plain, err := s.open(b, "n1"); err == nil { // only who has the key makes one
			t.Errorf("%v is opened: %v", b, plain)
		}
	})
}

// TestDatagramsOfAdjacentVersionsAreRead, and no others: a program speaks two.
func TestDatagramsOfAdjacentVersionsAreRead(t *testing.T) {
	of := func(oldest, newest int) *sealer {
		s, err := newSealer(Config{Key: make([]byte, 32), Cluster: "c1", Oldest: oldest, Newest: newest})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	all := []*sealer{of(1, 1), of(1, 2), of(2, 3), of(3, 4)}
	for i, from := range all {
		for j, to := range all {
			_, err := to.open(from.seal([]byte("x"), "n"), "n")
			if adjacent := i-j <= 1 && j-i <= 1; adjacent != (err == nil) || !adjacent && !errors.Is(err, ErrPacket) {
				t.Errorf("%d to %d of %d to %d: %v", to.oldest, to.newest, from.oldest, from.newest, err)
			}
		}
	}
}
