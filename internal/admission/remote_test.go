package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/pinned"
)

// withURLs is a request to admit a job that reads from entries.
func withURLs(t *testing.T, files, validation string) Request {
	t.Helper()
	return Request{User: access.User{UID: uint32(os.Geteuid())}, Host: Host{Cores: 2}, Submit: api.SubmitRequest{File: "job.yaml", Base: t.TempDir(), Source: `version: 1
model: {family: gpt2, config: {vocab_size: 256, n_positions: 4, n_embd: 8, n_layer: 1, n_head: 2}}
data: {files: [` + files + `], validation: [` + validation + `]}
optimizer: {lr: 0.1}
train: {steps: 1, batch: 1}
`}}
}

const trained, evaluated = "s3://bucket/train/", "https://a.example/test.txt"

// TestURLsAreResolvedBeforeAJobIsAdmitted: first it is asked what they stand for, and that is part of the spec.
func TestURLsAreResolvedBeforeAJobIsAdmitted(t *testing.T) {
	q := withURLs(t, trained, evaluated+", "+trained)
	_, err := Admit(t.Context(), q, func(string) {})
	var wants *wantsError
	if !errors.As(err, &wants) || strings.Join(wants.urls, " ") != trained+" "+evaluated {
		t.Fatalf("asked for %v (%v)", wants, err)
	}
	one := pinned.Object{Entry: trained, URL: trained + "a", Name: "a", Bytes: 1000, ETag: "e"}
	other := pinned.Object{Entry: evaluated, URL: evaluated, Name: "test.txt", Bytes: 500, ETag: "f"}
	q.Remote = map[string]Resolved{trained: {Objects: []pinned.Object{one}}, evaluated: {Objects: []pinned.Object{other}}}
	s, err := Admit(t.Context(), q, func(string) {})
	if err != nil || len(s.Remote) != 2 || s.Remote[0] != one || s.Remote[1] != other || s.Files == "" || !strings.Contains(strings.Join(s.Why, "\n"), "2 objects of 1.5 KB are fetched") {
		t.Fatalf("%+v, %v (%v)", s.Remote, s.Why, err)
	}
	many := make([]pinned.Object, maxObjects)
	for i := range many {
		many[i] = pinned.Object{Entry: trained, URL: fmt.Sprint(trained, i), Name: strconv.Itoa(i), Bytes: 1000, ETag: "e"}
	}
	for says, found := range map[string]Resolved{
		"data.files[0]: no such bucket":             {Problem: "no such bucket"},
		"data.files: its URLs stand for":            {Objects: many},
		"data.files: its URLs stand for 2 objects,": {Objects: []pinned.Object{{Entry: trained, URL: trained + strings.Repeat("x", maxListBytes), Name: "x", Bytes: 1000}}},
	} {
		q.Remote[trained] = found
		if _, err := Admit(t.Context(), q, func(string) {}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, expected %q", err, says)
		}
	}
}

// TestTheDaemonResolvesURLs, with the rights of the user, and the process is asked again.
func TestTheDaemonResolvesURLs(t *testing.T) {
	i := shell(`if grep -q '"remote":{'; then echo '{"refused":{"error":"asked again"},"status":409}'; else echo '{"wants":["s3://bucket/x","s3://bucket/y"]}'; fi`)
	var asked []string
	answers := make(chan string, 2)
	i.Resolve = func(_ context.Context, u *access.User, entry string) ([]pinned.Object, error) {
		answers <- fmt.Sprint(u.UID, " ", entry)
		return nil, errors.New("no")
	}
	_, err := i.Admit(t.Context(), Request{User: access.User{UID: 7}, Submit: api.SubmitRequest{File: "job.yaml"}})
	for range 2 {
		asked = append(asked, <-answers)
	}
	if err == nil || err.Error() != "asked again" || !strings.Contains(strings.Join(asked, ","), "7 s3://bucket/y") {
		t.Errorf("asked for %v: %v", asked, err)
	}
}
