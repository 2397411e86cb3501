package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// identity is the record at the top of a state directory. It is written once, after the first start has begun Raft's log: where it
// is, a log must be as well.
type identity struct {
	Node string `json:"node"` // this node's name, for good: committed rounds say by name who holds their shards
}

const (
	identityKind    = "identity"
	identityVersion = 1
)

func identityPath(state string) string { return filepath.Join(state, "identity") }

// readIdentity returns what a state directory is. One that is new, or of an older program, gets the name that it wrote to the file
// node, else the wanted one, else the host's; keepIdentity writes it down.
func readIdentity(state, wanted string) (id identity, kept bool, err error) {
	err = checkpoint.ReadRecord(checkpoint.OS, identityPath(state), identityKind, identityVersion, &id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if id.Node, err = olderName(state); err != nil {
			return id, false, err
		}
	case err != nil:
		return id, false, fmt.Errorf("%w; restore it from a backup, or let avgpiped recover write it again", err)
	default:
		kept = true
	}
	if id.Node != "" && wanted != "" && wanted != id.Node {
		return id, false, fmt.Errorf("the state directory %s says that this node is %q, the configuration says %q: a node keeps its name",
			state, id.Node, wanted)
	}
	if id.Node == "" {
		id, err = newIdentity(wanted)
	}
	return id, kept, err
}

// newIdentity names a node.
func newIdentity(wanted string) (identity, error) {
	if wanted != "" {
		return identity{Node: wanted}, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return identity{}, fmt.Errorf("name the node: %w", err)
	}
	return identity{Node: name}, nil
}

// olderName reads the name that a program before the identity record wrote; "" without one.
func olderName(state string) (string, error) {
	path := filepath.Join(state, "node")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the node's name: %w", err)
	}
	name := strings.TrimSpace(string(text))
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0xFFFD }) {
		return "", fmt.Errorf("%s is damaged: it holds %.40q, expected this node's name: write the name that it had, or restore the file from a backup",
			path, text)
	}
	return name, nil
}

func keepIdentity(state string, id identity) error {
	return checkpoint.WriteRecord(checkpoint.OS, identityPath(state), identityKind, identityVersion, id, 0o640)
}
