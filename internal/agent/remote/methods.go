package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/shard"
)

// method is how one question is answered.
type method struct {
	reads  bool // and decides nothing, so that every node may ask
	needs  needs
	answer func(ctx context.Context, h *Handler, q *question, each func(agent.Event)) line
	raw    func(h *Handler, w http.ResponseWriter, r *http.Request, q *question) // in the place of answer: bytes
}

// with is an answer that is a value.
func with[T any](ask func(ctx context.Context, a agent.Agent, q *question) (T, error)) func(context.Context, *Handler, *question, func(agent.Event)) line {
	return func(ctx context.Context, h *Handler, q *question, _ func(agent.Event)) line {
		value, err := ask(ctx, h.agent, q)
		var text []byte
		if err == nil {
			text, err = json.Marshal(value)
		}
		if err != nil {
			return line{Error: failureOf(err)}
		}
		return line{Result: text}
	}
}

// done is an answer that says that it is so.
func done(ask func(ctx context.Context, a agent.Agent, q *question) error) func(context.Context, *Handler, *question, func(agent.Event)) line {
	return with(func(ctx context.Context, a agent.Agent, q *question) (struct{}, error) {
		return struct{}{}, ask(ctx, a, q)
	})
}

// given fails where a question lacks a part.
func given[T any](part *T, what string) (T, error) {
	if part == nil {
		var none T
		return none, fmt.Errorf("the question has no %s", what)
	}
	return *part, nil
}

type (
	disk struct{ Free, Size int64 }
	past struct {
		Records []byte `json:"records"` // as in a file
		Damaged int    `json:"damaged"`
	}
	page struct {
		Entries []json.RawMessage `json:"entries"`
		Place   string            `json:"place"`
	}
)

// methods are all questions, by name.
var methods = map[string]method{
	"ping":    {reads: true, answer: done(func(context.Context, agent.Agent, *question) error { return nil })},
	"measure": {reads: true, raw: sendZeros},
	"info":    {reads: true, answer: with(func(ctx context.Context, a agent.Agent, _ *question) (agent.Info, error) { return a.Info(ctx) })},
	"processes": {reads: true, answer: with(func(ctx context.Context, a agent.Agent, _ *question) ([]agent.Running, error) {
		return a.Processes(ctx)
	})},
	"probe": {answer: with(func(ctx context.Context, a agent.Agent, q *question) (agent.Link, error) { return a.Probe(ctx, q.Node) })},
	"look": {answer: with(func(ctx context.Context, a agent.Agent, q *question) (agent.Sight, error) {
		if q.Spec == nil {
			return agent.Sight{}, errors.New("the question has no spec")
		}
		return a.Look(ctx, q.Spec)
	})},
	"listen": {needs: aJob, answer: with(func(ctx context.Context, a agent.Agent, q *question) (string, error) {
		return a.Listen(ctx, q.Job, q.Generation)
	})},
	"start": {answer: with(func(ctx context.Context, a agent.Agent, q *question) (p agent.Process, err error) {
		todo, err := given(q.Assignment, "assignment")
		if err == nil {
			p, err = a.Start(ctx, todo)
		}
		return p, err
	})},
	"tune": {answer: with(func(ctx context.Context, a agent.Agent, q *question) (p agent.Process, err error) {
		todo, err := given(q.Tuning, "tuning")
		if err == nil {
			p, err = a.Tune(ctx, todo)
		}
		return p, err
	})},
	"events": {needs: aProcess, answer: func(ctx context.Context, h *Handler, q *question, each func(agent.Event)) line {
		if err := h.events(ctx, *q.Process, each); err != nil {
			return line{Error: failureOf(err)}
		}
		return line{Result: json.RawMessage("{}")}
	}},
	"forget": {needs: aProcess, answer: func(_ context.Context, h *Handler, q *question, _ func(agent.Event)) line {
		h.forget(*q.Process)
		return line{Result: json.RawMessage("{}")}
	}},
	"status": {needs: aProcess, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) (any, error) { return a.Status(ctx, *q.Process) })},
	"commit": {needs: aProcess, answer: with(func(ctx context.Context, a agent.Agent, q *question) (any, error) {
		todo, err := given(q.Commit, "commit")
		if err != nil {
			return nil, err
		}
		return a.Commit(ctx, *q.Process, todo)
	})},
	"stop": {needs: aProcess, answer: done(func(ctx context.Context, a agent.Agent, q *question) error { return a.Stop(ctx, *q.Process) })},
	"kill": {needs: aProcess, answer: done(func(ctx context.Context, a agent.Agent, q *question) error { return a.Kill(ctx, *q.Process) })},
	"passed": {answer: done(func(ctx context.Context, a agent.Agent, q *question) error {
		o, err := given(q.Obstacle, "obstacle")
		if err == nil {
			err = a.Passed(ctx, o)
		}
		return err
	})},
	"log": {answer: done(func(_ context.Context, a agent.Agent, q *question) error {
		for _, l := range q.Lines {
			l.write(a)
		}
		return nil
	})},
	"record": {answer: done(func(ctx context.Context, a agent.Agent, q *question) error {
		j, err := given(q.Record, "record")
		if err == nil {
			err = a.Record(ctx, &j, q.Started)
		}
		return err
	})},
	"retire": {answer: with(func(ctx context.Context, a agent.Agent, q *question) (own bool, err error) {
		j, err := given(q.Record, "record")
		if err == nil {
			own, err = a.Retire(ctx, &j, q.Reason)
		}
		return own, err
	})},
	"delete": {needs: aJob, answer: done(func(ctx context.Context, a agent.Agent, q *question) error { return a.Delete(ctx, q.Job) })},
	"keep_status": {needs: aJob, answer: done(func(ctx context.Context, a agent.Agent, q *question) error {
		return a.KeepStatus(ctx, q.Job, q.Status)
	})},
	"kept_status": {needs: aJob, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) (any, error) {
		return a.KeptStatus(ctx, q.Job), nil
	})},
	"usage": {needs: aJob, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) (int64, error) { return a.Usage(ctx, q.Job), nil })},
	"disk": {reads: true, answer: with(func(ctx context.Context, a agent.Agent, _ *question) (d disk, err error) {
		d.Free, d.Size, err = a.Disk(ctx)
		return d, err
	})},
	"keep": {needs: aJob, answer: with(func(ctx context.Context, a agent.Agent, q *question) (shard.Digest, error) {
		return a.Keep(ctx, q.Job, q.Object)
	})},
	"object": {needs: aJob | aDigest, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) ([]byte, error) {
		return a.Object(ctx, q.Job, q.Digest)
	})},
	"companion": {needs: aJob, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) ([]byte, error) {
		return a.Companion(ctx, q.Job, q.Name)
	})},
	"history": {needs: aJob, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) (past, error) {
		records, damaged, err := a.History(ctx, q.Job)
		return past{history.Encode(records), damaged}, err
	})},
	"read_log": {needs: aJob, reads: true, answer: with(readLog)},
	"verify": {needs: aJob | aDigest, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) (int64, error) {
		return a.Shards(q.Job).Verify(ctx, q.Digest)
	})},
	"size": {needs: aJob | aDigest, reads: true, answer: with(func(ctx context.Context, a agent.Agent, q *question) (int64, error) {
		return a.Shards(q.Job).Size(ctx, q.Digest)
	})},
	"collect": {needs: aJob, answer: with(func(ctx context.Context, a agent.Agent, q *question) ([]shard.Digest, error) {
		c, err := given(q.Collection, "collection")
		if err != nil {
			return nil, err
		}
		c.Aside = "" // a path, which the agent decides
		return a.Shards(q.Job).Collect(ctx, c)
	})},
	"fetch": {needs: aJob | aDigest, answer: done(func(ctx context.Context, a agent.Agent, q *question) error {
		return a.Shards(q.Job).Fetch(ctx, q.Digest, q.Bytes, q.From)
	})},
	"open": {needs: aJob | aDigest, reads: true, raw: sendShard},
}

// write adds the line to its log.
func (l *logLine) write(a agent.Agent) {
	var fields map[string]any
	level, err := zapcore.ParseLevel(l.Level)
	if err != nil || level > zapcore.ErrorLevel {
		level = zapcore.ErrorLevel
	}
	if len(l.Fields) > 0 && json.Unmarshal(l.Fields, &fields) != nil {
		fields = map[string]any{"fields": string(l.Fields)}
	}
	var all []zap.Field
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		all = append(all, zap.Any(name, fields[name]))
	}
	a.Log(l.Job, level, l.Message, all...)
}

// Bounds of a page of a log.
const (
	pageEntries = 512
	pageBytes   = 1 << 20
)

// readLog reads what a log has from a place on, up to a bound.
func readLog(ctx context.Context, a agent.Agent, q *question) (p page, err error) {
	request, err := given(q.Log, "log")
	if err != nil {
		return p, err
	}
	r, err := a.OpenLog(ctx, q.Job, request)
	if err != nil {
		return p, err
	}
	defer r.Close() //nolint:errcheck // only read
	for bytes := 0; len(p.Entries) < pageEntries && bytes < pageBytes && ctx.Err() == nil; {
		entry, err := r.Next(q.Ended)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return p, err
		}
		p.Entries = append(p.Entries, entry)
		bytes += len(entry)
	}
	p.Place = r.Place()
	return p, nil
}

// rawChunk is how many bytes are sent at a time.
const rawChunk = 256 << 10

// sendShard sends a shard's file.
func sendShard(h *Handler, w http.ResponseWriter, r *http.Request, q *question) {
	file, size, err := h.agent.Shards(q.Job).Open(r.Context(), q.Digest)
	if err != nil {
		refuse(w, http.StatusConflict, err)
		return
	}
	defer file.Close() //nolint:errcheck // only read
	h.send(w, r, io.LimitReader(file, size), size)
}

// maxMeasure bounds the bytes of a measurement.
const maxMeasure = 16 << 20

// sendZeros sends as many bytes as were asked for.
func sendZeros(h *Handler, w http.ResponseWriter, r *http.Request, q *question) {
	h.send(w, r, io.LimitReader(zeros{}, maxMeasure), min(q.Bytes, maxMeasure))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// send sends so many bytes, for as long as they are read. What cannot be sent whole is broken off.
func (h *Handler) send(w http.ResponseWriter, r *http.Request, from io.Reader, size int64) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
	within := http.NewResponseController(w)
	chunk := make([]byte, rawChunk)
	for left := size; left > 0; {
		n, err := io.ReadFull(from, chunk[:min(left, rawChunk)])
		if err == nil {
			_ = within.SetWriteDeadline(time.Now().Add(h.config.Patience)) // a recorder has none
			_, err = w.Write(chunk[:n])
		}
		if err != nil || r.Context().Err() != nil || h.ctx.Err() != nil {
			panic(http.ErrAbortHandler) // as net/http says: the reader must not take this for whole
		}
		left -= int64(n)
	}
	_ = within.SetWriteDeadline(time.Time{})
}
