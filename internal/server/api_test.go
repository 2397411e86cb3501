package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/server"
)

// answered is an answer to a request.
type answered struct {
	status int
	header http.Header
	body   []byte
}

// ask sends a request over a socket.
func ask(t *testing.T, socket, method, path, body string) answered {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	text, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answered{response.StatusCode, response.Header, text}
}

// description is openapi.json as far as the tests look at it.
type description struct {
	Paths map[string]map[string]struct {
		RequestBody *struct{} `json:"requestBody"`
		Responses   map[string]struct {
			Content map[string]struct{} `json:"content"`
		} `json:"responses"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]struct {
			Enum []string `json:"enum"`
		} `json:"schemas"`
	} `json:"components"`
}

func readDescription(t *testing.T) (d description, compiler *jsonschema.Compiler) {
	t.Helper()
	if err := json.Unmarshal(server.Description, &d); err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(server.Description))
	if err != nil {
		t.Fatal(err)
	}
	compiler = jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("openapi.json", document); err != nil {
		t.Fatal(err)
	}
	return d, compiler
}

// fill sets every field, so that a schema that forbids what is really sent shows: pointers to values, lists of one.
func (d description) fill(v reflect.Value) {
	switch v.Kind() { //nolint:exhaustive // others stay zero, and their schemas show it
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		d.fill(v.Index(0))
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)))
			return
		}
		for _, field := range v.Fields() {
			d.fill(field)
		}
	case reflect.String:
		v.SetString("text")
		if enum := d.Components.Schemas[v.Type().Name()].Enum; enum != nil {
			v.SetString(enum[0])
		}
	case reflect.Int, reflect.Int64:
		v.SetInt(2)
	case reflect.Uint64:
		v.SetUint(2)
	case reflect.Float64:
		v.SetFloat(0.5)
	case reflect.Bool:
		v.SetBool(true)
	}
}

// sent is a backend that answers with everything that there can be.
type sent struct {
	fake
	d description
}

func (f *fake) Audit(context.Context, string) (api.Accounting, error) {
	return api.Accounting{ID: "1", Exact: true}, nil
}

func (s *sent) Audit(context.Context, string) (a api.Accounting, err error) {
	s.d.fill(reflect.ValueOf(&a).Elem())
	return a, nil
}

func (s *sent) Explain(context.Context, string) (e api.Explanation, err error) {
	s.d.fill(reflect.ValueOf(&e).Elem())
	return e, nil
}

func (s *sent) Resume(context.Context, string, api.ResumeRequest, server.Peer) (api.JobStatus, error) {
	return s.job, nil
}

func (f *fake) ClearGPU(ctx context.Context, _ string, _ server.Peer) ([]api.NodeStatus, error) {
	return f.Nodes(ctx)
}

func (s *sent) ClearGPU(ctx context.Context, _ string, _ server.Peer) (n []api.NodeStatus, err error) {
	return s.Nodes(ctx)
}

func (s *sent) Nodes(context.Context) (n []api.NodeStatus, err error) {
	s.d.fill(reflect.ValueOf(&n).Elem())
	return n, nil
}

func (s *sent) DryRun(context.Context, api.SubmitRequest, server.Peer) (d api.DryRun, err error) {
	s.d.fill(reflect.ValueOf(&d).Elem())
	return d, nil
}

func (s *sent) Tune(_ context.Context, _ api.SubmitRequest, _ server.Peer, each func(api.TuneUpdate) error) error {
	var u api.TuneUpdate
	s.d.fill(reflect.ValueOf(&u).Elem())
	return each(u)
}

// TestAnswersAreAsDescribed asks for everything that the description has, and holds what comes against its schemas.
func TestAnswersAreAsDescribed(t *testing.T) {
	d, compiler := readDescription(t)
	b := &sent{d: d}
	d.fill(reflect.ValueOf(&b.job).Elem())
	b.job.ID, b.job.State = "1", api.Done
	b.log.WriteString(`{"level":"info"}` + "\n")
	_, socket, _ := start(t, b)
	for path, operations := range d.Paths {
		for method, o := range operations {
			body := ""
			if o.RequestBody != nil {
				body = `{"file": "job.yaml", "source": "", "base": "/"}`
				for suffix, other := range map[string]string{
					"/resume": `{"from_round": 1}`, "/tokens": `{"role": "node", "valid_s": 60}`, "/certificate": `{"csr": "-----BEGIN X-----\nAQ==\n-----END X-----\n"}`, "/drain": `{"reason": "x"}`,
				} {
					if strings.HasSuffix(path, suffix) {
						body = other
					}
				}
			}
			answer := ask(t, socket, strings.ToUpper(method), strings.NewReplacer("{job}", "1", "{node}", "n").Replace(path), body)
			for status, r := range o.Responses {
				for kind := range r.Content {
					name := strings.ToUpper(method) + " " + path
					if found := answer.header.Get("Content-Type"); strconv.Itoa(answer.status) != status || !strings.HasPrefix(found, kind) {
						t.Errorf("%s: %d, %s; described as %s, %s", name, answer.status, found, status, kind)
						continue
					}
					if !strings.HasSuffix(kind, "json") {
						continue
					}
					pointer := "openapi.json#/paths/" + escape(path) + "/" + method + "/responses/" + status + "/content/" + escape(kind) + "/schema"
					validate(t, compiler, name, pointer, answer.body)
				}
			}
		}
	}
}

// escape writes a key as a part of a JSON pointer in a URL.
func escape(key string) string {
	return strings.NewReplacer("~", "~0", "/", "~1", "{", "%7B", "}", "%7D").Replace(key)
}

// validate holds every JSON value of a body against a schema.
func validate(t *testing.T, compiler *jsonschema.Compiler, name, pointer string, body []byte) {
	t.Helper()
	schema, err := compiler.Compile(pointer)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	values := json.NewDecoder(bytes.NewReader(body))
	values.UseNumber()
	count := 0
	for ; values.More(); count++ {
		var value any
		if err := values.Decode(&value); err != nil {
			t.Errorf("%s: %v in %s", name, err, body)
			return
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v in %s", name, err, body)
		}
	}
	if count == 0 {
		t.Errorf("%s: an empty answer", name)
	}
}

// TestErrorsHaveACodeAndNoWordOfGo: each is as described, and says what is wrong in the terms of HTTP and JSON.
func TestErrorsHaveACodeAndNoWordOfGo(t *testing.T) {
	_, compiler := readDescription(t)
	_, socket, _ := start(t, &fake{job: api.JobStatus{ID: "1"}})
	for _, c := range []struct {
		method, path, body string
		status             int
		code               api.Code
		text               string
	}{
		{"GET", "/", "", 404, api.NotFound, "no such path"},
		{"GET", "/v1/jobs/nobody", "", 404, api.NotFound, `no job "nobody"`},
		{"DELETE", "/v1/jobs", "", 405, api.MethodNotAllowed, "takes GET, HEAD, POST"},
		{"PUT", "/v1/jobs/1/cancel", "", 405, api.MethodNotAllowed, "takes POST"},
		{"POST", "/metrics", "", 405, api.MethodNotAllowed, "takes GET, HEAD"},
		{"POST", "/v1/jobs", "", 400, api.BadRequest, "is empty"},
		{"POST", "/v1/jobs", "{", 400, api.BadRequest, "ends before"},
		{"GET", "/v1/jobs/1/logs?level=loud", "", 400, api.BadRequest, "debug, info, warn, error"},
		{"GET", "/v1/jobs/1/logs?since=noon", "", 400, api.BadRequest, `since="noon"`},
		{"GET", "/v1/jobs/1/logs?tail=-1", "", 400, api.BadRequest, `tail="-1"`},
		{"GET", "/v1/jobs/1/history?from=-1", "", 400, api.BadRequest, `from="-1"; allowed is a step`},
		{"GET", "/v1/jobs/1/history?points=many", "", 400, api.BadRequest, `points="many"`},
		{"GET", "/v1/jobs/1/logs?follow=x", "", 400, api.BadRequest, `follow="x"; allowed is 1`},
		{"GET", "/v1/jobs/1/logs?folow=1", "", 400, api.BadRequest, `the query has "folow"; allowed are follow, tail, since, level, after`},
		{"GET", "/v1/jobs/1/history?from=1&from=2", "", 400, api.BadRequest, `the query has "from" 2 times`},
		{"GET", "/v1/jobs?bogus=1", "", 400, api.BadRequest, `the query has "bogus"; this request has no parameters`},
		{"GET", "/v1/jobs?%zz", "", 400, api.BadRequest, `the query cannot be read: "%zz"`},
		{"POST", "/v1/jobs", "}", 400, api.BadRequest, "no JSON: the fault is at byte 1"},
		{"POST", "/v1/jobs", "{} {}", 400, api.BadRequest, "something follows"},
		{"POST", "/v1/jobs", "[]", 400, api.BadRequest, `has a value of the wrong type, array, in ""`},
		{"POST", "/v1/jobs", `{"fiel": "x"}`, 400, api.BadRequest, `the key "fiel"`},
		{"POST", "/v1/jobs", `{"file": 1.5}`, 400, api.BadRequest, `wrong type, number, in "file"`},
		{"POST", "/v1/jobs", `{"set": {}}`, 400, api.BadRequest, `wrong type, object, in "set"`},
		{"POST", "/v1/tune", `{"retune": "yes"}`, 400, api.BadRequest, `wrong type, string, in "retune"`},
		{"POST", "/v1/tune", `{"env": {"A": true}}`, 400, api.BadRequest, `wrong type, bool, in "env`},
		{"POST", "/v1/jobs", `{"source": "` + strings.Repeat("x", 2<<20) + `"}`, 413, api.TooLarge, "more than 1048576 bytes"},
	} {
		name := c.method + " " + c.path + " " + c.body[:min(len(c.body), 40)]
		answer := ask(t, socket, c.method, c.path, c.body)
		validate(t, compiler, name, "openapi.json#/components/schemas/Error", answer.body)
		var e api.Error
		if err := json.Unmarshal(answer.body, &e); err != nil {
			t.Fatal(err)
		}
		if answer.status != c.status || e.Code != c.code || !strings.Contains(e.Message, c.text) {
			t.Errorf("%s: %d %s; want %d, %s and %q", name, answer.status, answer.body, c.status, c.code, c.text)
		}
		for _, word := range []string{"json:", "Go ", "struct", "api.", "unmarshal", "strconv", "invalid character"} {
			if strings.Contains(e.Message, word) {
				t.Errorf("%s: %q in %q", name, word, e.Message)
			}
		}
		if allow := answer.header.Get("Allow"); (allow != "") != (c.status == 405) {
			t.Errorf("%s: Allow is %q", name, allow)
		}
	}
}

// TestEveryCodeIsOfOneStatus, so that programs may look at either.
func TestEveryCodeIsOfOneStatus(t *testing.T) {
	d, _ := readDescription(t)
	have := map[api.Code]int{}
	for status := 400; status < 600; status++ {
		code, ok := api.CodeOf(status)
		if !ok {
			continue
		}
		if other := have[code]; other != 0 {
			t.Errorf("%s is of %d and %d", code, other, status)
		}
		have[code] = status
	}
	for _, code := range d.Components.Schemas["Code"].Enum {
		if have[api.Code(code)] == 0 {
			t.Errorf("%s has no status", code)
		}
	}
}

func (f *fake) Remove(ctx context.Context, ref string, _ server.Peer) (api.JobStatus, error) {
	return f.Job(ctx, ref)
}

func (f *fake) CreateToken(context.Context, string, string, uint32, time.Duration, server.Peer) (string, error) {
	return "token", f.failure
}

func (f *fake) Drain(ctx context.Context, _, _ string, _ server.Peer) ([]api.NodeStatus, error) {
	return f.Nodes(ctx)
}

func (s *sent) Drain(context.Context, string, string, server.Peer) (n []api.NodeStatus, err error) {
	s.d.fill(reflect.ValueOf(&n).Elem())
	return n, nil
}

func (f *fake) Undrain(ctx context.Context, _ string, _ server.Peer) ([]api.NodeStatus, error) {
	return f.Nodes(ctx)
}

func (s *sent) Undrain(context.Context, string, server.Peer) (n []api.NodeStatus, err error) {
	s.d.fill(reflect.ValueOf(&n).Elem())
	return n, nil
}

func (f *fake) RemoveNode(ctx context.Context, _ string, _ bool, _ server.Peer) ([]api.NodeStatus, error) {
	return f.Nodes(ctx)
}

func (s *sent) RemoveNode(context.Context, string, bool, server.Peer) (n []api.NodeStatus, err error) {
	s.d.fill(reflect.ValueOf(&n).Elem())
	return n, nil
}

func (f *fake) RenewClient(context.Context, []byte, server.Peer) (api.RenewResponse, error) {
	return api.RenewResponse{Certificate: "PEM", Addresses: []string{}}, f.failure
}

func (f *fake) Backup(_ context.Context, w io.Writer) error {
	if f.failure != nil {
		return f.failure
	}
	_, err := w.Write([]byte("a backup"))
	return err
}

func (f *fake) Restore(_ context.Context, backup io.Reader, _ server.Peer) (api.RestoreResponse, error) {
	text, err := io.ReadAll(backup)
	return api.RestoreResponse{Node: string(text[:min(len(text), 20)]), Jobs: len(text), Interrupted: []string{}, Back: []string{}}, err
}
