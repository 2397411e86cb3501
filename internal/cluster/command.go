package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// Command is a change of the replicated state. The set is closed: table commands lists every kind.
type Command interface {
	// apply changes s, which nobody else sees yet, and returns the job it was about, if any. After an error s is thrown away. What the command holds
	// becomes the state's: a command is applied once, as it was decoded.
	apply(s *State) (job string, err error)
}

// commands is every kind of command that this program understands, by its name in the log.
var commands = map[string]func() Command{
	"submit_job":       func() Command { return new(SubmitJob) },
	"set_state":        func() Command { return new(SetState) },
	"begin_generation": func() Command { return new(BeginGeneration) },
	"begin_commit":     func() Command { return new(BeginCommit) },
	"abort_commit":     func() Command { return new(AbortCommit) },
	"commit_round":     func() Command { return new(CommitRound) },
	"end_job":          func() Command { return new(EndJob) },
	"cancel_job":       func() Command { return new(CancelJob) },
	"request_cancel":   func() Command { return new(RequestCancel) },
	"discard_round":    func() Command { return new(DiscardRound) },
	"begin_tuning":     func() Command { return new(BeginTuning) },
	"resolve_job":      func() Command { return new(ResolveJob) },
	"resume_job":       func() Command { return new(ResumeJob) },
	"restore_job":      func() Command { return new(RestoreJob) },
	"remove_job":       func() Command { return new(RemoveJob) },
	"begin_cluster":    func() Command { return new(BeginCluster) },
	"add_token":        func() Command { return new(AddToken) },
	"join_node":        func() Command { return new(JoinNode) },
	"spend_token":      func() Command { return new(SpendToken) },
	"update_node":      func() Command { return new(UpdateNode) },
	"drain_node":       func() Command { return new(DrainNode) },
	"place_shard":      func() Command { return new(PlaceShard) },
	"resume_node":      func() Command { return new(ResumeNode) },
	"remove_node":      func() Command { return new(RemoveNode) },
}

// kinds are the names by type.
var kinds = func() map[reflect.Type]string {
	names := make(map[reflect.Type]string, len(commands))
	for name, build := range commands {
		names[reflect.TypeOf(build())] = name
	}
	return names
}()

// Kind is the command's name in the log.
func Kind(c Command) string { return kinds[reflect.TypeOf(c)] }

// CommandVersion is the newest version of commands that this program reads and writes. It grows with every kind that is new, and with every
// change that an older program would apply differently; table since says which kind.
const CommandVersion = 2

// What a command needs that has something which version 1 does not know.
const (
	groupsVersion = 2 // a round with shards of several groups of pipelines
	keysVersion   = 2 // the key of a submission
	wasVersion    = 2 // the state that a job was resumed from
)

// since is the version of commands that a kind needs, where that is not 1: the one that it appeared in, or changed its meaning in.
var since = map[string]int{}

// NeededVersion is the version of commands that a program must know to apply c. It is what the log says of c, so that an older program stops only at
// what it would apply differently.
func NeededVersion(c Command) int {
	switch c := c.(type) {
	case *CommitRound:
		if c.Manifest.Groups() > 1 {
			return groupsVersion
		}
	case *SubmitJob:
		if c.Key != "" {
			return keysVersion
		}
	case *ResumeJob:
		if c.Was != "" {
			return wasVersion
		}
	}
	return max(1, since[Kind(c)])
}

// commandMagic starts every command in the log.
const commandMagic = "AVGC"

// envelope is a command in the log, after the magic.
type envelope struct {
	V    int    `json:"v"`
	Kind string `json:"kind"`
	// By is the version of the program that wrote it, for people.
	By string `json:"by,omitempty"`
	// Ignorable says that a program which does not know the kind, or the version, goes on without it: it changes nothing that others depend on.
	Ignorable bool            `json:"ignorable,omitempty"`
	Body      json.RawMessage `json:"body"`
}

// EncodeCommand gives the command's bytes in the log (docs/formats.md). by is the version of this program.
func EncodeCommand(c Command, by string) ([]byte, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("encode command %s: %w", Kind(c), err)
	}
	data, err := json.Marshal(envelope{V: NeededVersion(c), Kind: Kind(c), By: by, Body: body})
	if err != nil {
		return nil, fmt.Errorf("encode command %s: %w", Kind(c), err)
	}
	return append([]byte(commandMagic), data...), nil
}

// decodeCommand reads a command; nil without an error if it may be ignored. Every error says that this program must not go on.
func decodeCommand(data []byte) (Command, error) {
	text, ok := bytes.CutPrefix(data, []byte(commandMagic))
	if !ok {
		return nil, fmt.Errorf("it starts with %q, expected %q", data[:min(len(data), len(commandMagic))], commandMagic)
	}
	var e envelope
	if err := json.Unmarshal(text, &e); err != nil {
		return nil, fmt.Errorf("its envelope: %w", err)
	}
	by := "an avgpiped that does not say its version"
	if e.By != "" {
		by = "avgpiped " + e.By
	}
	build, known := commands[e.Kind]
	switch {
	case known && e.V <= CommandVersion:
	case e.Ignorable:
		return nil, nil
	case known:
		return nil, fmt.Errorf("command %q has version %d, written by %s, and this program knows versions up to %d", e.Kind, e.V, by, CommandVersion)
	default:
		return nil, fmt.Errorf("command %q of version %d, written by %s, is not known to this program", e.Kind, e.V, by)
	}
	c := build()
	if err := json.Unmarshal(e.Body, c); err != nil {
		return nil, fmt.Errorf("command %q of version %d, written by %s: %w", e.Kind, e.V, by, err)
	}
	return c, nil
}

// RefusedError reports an entry that this program cannot apply. To go on without it would give another state than on the nodes that
// can: nothing after it may be applied.
type RefusedError struct {
	Index   uint64
	Problem error
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("entry %d of the log is refused, and all after it: %v: start the avgpiped that wrote it, or a newer one", e.Index, e.Problem)
}

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Problem }

// ApplyEntry applies the entry of the log that holds a command. It is a pure function, like Apply. An entry that this program does not
// understand is a *RefusedError, with the state as it was, unless the entry says that it may be ignored.
func (s *State) ApplyEntry(index uint64, data []byte) (*State, Result, error) {
	c, err := decodeCommand(data)
	if err != nil {
		return s, Result{}, &RefusedError{index, err}
	}
	if c == nil {
		next := *s
		next.Index = index
		next.Unknown++
		return &next, Result{Index: index, Unknown: true}, nil
	}
	return s.Apply(index, c)
}
