package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/dryrun"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// lookLimit bounds one look at what a job reads: directories are listed, and heads of files read.
const lookLimit = 10 * time.Second

// Look says what of that a job reads is missing on this host, with the rights of the job's user, in a process of its own. An error says that nobody
// knows.
func (i *Inspector) Look(ctx context.Context, s *spec.Spec) (agent.Sight, error) {
	text, err := spec.Encode(s)
	if err != nil {
		return agent.Sight{}, err
	}
	q := Request{Spec: text}
	if s.User != nil {
		q.User = *s.User
	}
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	what := "look for the files of job " + s.Job.Name
	answer, err := i.ask(ctx, q, asking{what: what, read: "reading what they are"})
	switch {
	case err != nil:
		return agent.Sight{}, err
	case answer.Failed != "":
		return agent.Sight{}, fmt.Errorf("%s: %s", what, answer.Failed)
	case answer.Sight == nil:
		return agent.Sight{}, fmt.Errorf("%s: the process that does it gave another answer", what)
	}
	return *answer.Sight, nil
}

// look does so in the process.
func look(ctx context.Context, q *Request, opens func(path string)) (out agent.Sight, err error) {
	s := &spec.Spec{}
	if err := json.Unmarshal(q.Spec, s); err != nil {
		return out, fmt.Errorf("read the job: %w", err)
	}
	m, err := s.BuildModel()
	if err != nil {
		return out, err
	}
	opener := &access.Opener{User: s.User, OnOpen: opens}
	c := feed.ConfigOf(&s.Job, m)
	c.Access, c.Remote = opener, s.Remote
	out.Data, err = lookForData(ctx, s, c)
	if err == nil && out.Data == "" {
		out.Data = lookForProgram(opener, s)
	}
	if err == nil && s.Job.Model.From != "" {
		if lost := export.Present(opener, s.Job.Model.From, m, s.Weights); lost != nil {
			out.Model = "model.from: " + lost.Error()
		}
	}
	return out, err
}

// lookForProgram says what is wrong with the user's program and its interpreter; "" where they are as they were, or there is none.
func lookForProgram(opener *access.Opener, s *spec.Spec) string {
	path, _ := s.Job.Model.Program()
	if path == "" {
		return ""
	}
	found, err := dryrun.Digest(opener, &s.Job)
	if err == nil && found != s.Program {
		return fmt.Sprintf("model.python: %s is not what it was when the job was submitted", path)
	}
	if err == nil {
		_, err = opener.Stat(dryrun.Interpreter(&s.Job))
	}
	if err != nil {
		return fmt.Sprintf("model.python: %v", err)
	}
	return ""
}

// lookForData says what is wrong with the data; "" where they are as they were.
func lookForData(ctx context.Context, s *spec.Spec, c data.Config) (string, error) {
	found, err := data.Pin(ctx, c)
	if problem, ok := errors.AsType[*data.Error](err); ok {
		return fmt.Sprintf("%s: %v", problem.Key, problem.Err), nil
	}
	switch {
	case err != nil:
		return "", err
	case s.Files != "" && found.Files != s.Files:
		return "data.files: the names or lengths of the files are not those of when the job was submitted", nil
	case s.Tokenizer != "" && found.Tokenizer != s.Tokenizer:
		return fmt.Sprintf("data.tokenizer: %s is not what it was when the job was submitted", s.Job.Data.Tokenizer), nil
	}
	return "", nil
}
