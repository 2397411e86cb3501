package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/objectstore"
	"github.com/avgpipe/avgpipe/internal/objectstore/objectstoretest"
)

// TestAJobReadsFromABucket with counts that are measured first: its data are fetched once for it and for others, and a job whose object was
// replaced before it could be fetched ends and says why.
func TestAJobReadsFromABucket(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var gets atomic.Int64
	var down, held atomic.Bool // all of the server, and what is late
	name := objectstoretest.Name()
	at := objectstoretest.Serve(t, name, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			if down.Load() || held.Load() && q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, "/late/x.txt") {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			if q.Method == http.MethodGet && strings.HasSuffix(q.URL.Path, ".txt") {
				gets.Add(1)
			}
			next.ServeHTTP(w, q)
		})
	})
	bucket, err := objectstore.Open(at, name)
	if err != nil {
		t.Fatal(err)
	}
	put := func(key, line string) {
		t.Helper()
		text := strings.Repeat(line, 400)
		if err := bucket.Put(t.Context(), key, strings.NewReader(text), int64(len(text)), ""); err != nil {
			t.Fatal(err)
		}
	}
	put("corpus/a.txt", "one two three four\n")
	put("corpus/b.txt", "five six seven eight\n")
	s.write("keys", at.AccessKey+"\n"+at.SecretKey+"\n")
	if err := os.Mkdir(filepath.Join(s.dir, "sources"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.write("sources/all.yaml", fmt.Sprintf("url: s3://%s/\ncredentials: %s\nendpoint: %s\n", name, filepath.Join(s.dir, "keys"), at.Endpoint))
	text, err := os.ReadFile(filepath.Join(s.dir, "avgpiped.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s.write("avgpiped.yaml", string(text)+"data_sources: "+filepath.Join(s.dir, "sources")+"\n")
	s.start()
	submit := func(entry, counts string) (string, error) {
		answer, err := s.client.Submit(t.Context(), api.SubmitRequest{File: "job.yaml", Base: s.dir, Source: `version: 1
model: {family: gpt2, config: {vocab_size: 256, n_positions: 16, n_embd: 8, n_layer: 2, n_head: 2}}
data: {files: [` + entry + `]}
optimizer: {lr: 1e-2}
train: {steps: 4, batch: 4, eval_samples: 4}
devices: {kind: ref}
` + counts})
		return answer.ID, err
	}
	const given = "stages: 1\npipelines: 1\nmicro_batches: 1\n"
	done := func(entry, counts string) {
		t.Helper()
		id, err := submit(entry, counts)
		if err != nil {
			t.Fatal(err)
		}
		if status := s.ended(id); status.State != api.Done {
			t.Fatalf("the job is %s: %s", status.State, status.Reason)
		}
	}
	corpus := "s3://" + name + "/corpus/"
	done(corpus, "tuning_share: 0\n") // every count is measured
	done(corpus, given)
	if n := gets.Load(); n != 2 {
		t.Errorf("two objects were fetched %d times", n)
	}
	for entry, want := range map[string]string{
		corpus + "c.txt":          "no such object",
		"s3://other-bucket/x":     "no source of this host covers it",
		"https://a.example/x.txt": "no source of this host covers it",
		"http://a.example/x.txt":  "https://a.example/x.txt",
	} {
		if _, err := submit(entry, given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, expected %q", entry, err, want)
		}
	}

	down.Store(true)
	if _, err := submit(corpus, given); err == nil || !strings.Contains(err.Error(), "cannot be used now") {
		t.Errorf("submitted while the bucket is down: %v", err)
	}
	down.Store(false)
	put("late/x.txt", "before\n")
	held.Store(true)
	id, err := submit("s3://"+name+"/late/x.txt", given)
	if err != nil {
		t.Fatal(err)
	}
	s.until("the job says what does not come", func(ctx context.Context) bool {
		j, err := s.client.Job(ctx, id)
		return err == nil && strings.Contains(j.Reason, "it is tried again")
	})
	put("late/x.txt", "afterwards\n")
	held.Store(false)
	if status := s.ended(id); status.State != api.Failed || !strings.Contains(status.Reason, "not what it was when the job was submitted") {
		t.Errorf("the job is %s: %s", status.State, status.Reason)
	}
}
