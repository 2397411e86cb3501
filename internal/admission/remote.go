package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/pinned"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
)

// Bounds of the URLs of a job file.
const (
	maxURLs      = 64
	resolveLimit = 30 * time.Second // of all
	mostResolved = 4                // at once
	maxObjects   = 4096             // that they stand for, all together: the replicated state keeps a list
	maxListBytes = 256 << 10        // of their names and URLs
)

// wantsError says that a job file has URLs, and nobody has said what they stand for.
type wantsError struct{ urls []string }

func (e *wantsError) Error() string {
	return fmt.Sprintf("nobody has said what %d URLs stand for", len(e.urls))
}

// urlsOf are those of a job file, each once.
func urlsOf(j *job.Job) (urls []string) {
	for _, entry := range slices.Concat(j.Data.Files, j.Data.Validation) {
		if job.IsURL(entry) && !slices.Contains(urls, entry) {
			urls = append(urls, entry)
		}
	}
	return urls
}

// resolve finds what URLs stand for.
func (i *Inspector) resolve(ctx context.Context, user *access.User, urls []string) map[string]Resolved {
	ctx, cancel := context.WithTimeout(ctx, resolveLimit)
	defer cancel()
	var (
		mu    sync.Mutex
		tasks sync.WaitGroup
		all   = map[string]Resolved{}
		slots = make(chan struct{}, mostResolved)
	)
	for _, entry := range urls {
		tasks.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			found := Resolved{Problem: "this node fetches nothing (data_sources)"}
			if i.Resolve != nil {
				objects, err := i.Resolve(ctx, user, entry)
				if found = (Resolved{Objects: objects}); err != nil {
					found.Problem = err.Error()
				}
			}
			mu.Lock()
			defer mu.Unlock()
			all[entry] = found
		})
	}
	tasks.Wait()
	return all
}

// checkURLs takes what the URLs of the job file stand for, and refuses those of which nobody can say it.
func (a *admission) checkURLs(found map[string]Resolved) {
	for _, of := range []struct {
		key     string
		entries []string
	}{{"data.files", a.job.Data.Files}, {"data.validation", a.job.Data.Validation}} {
		for i, entry := range of.entries {
			if problem := found[entry].Problem; job.IsURL(entry) && problem != "" {
				key := strictyaml.Item(of.key, i)
				a.at.Refuse(key, "", "%s: %s", key, problem)
			}
		}
	}
	urls, size := urlsOf(a.job), 0
	for i, entry := range urls {
		for _, o := range found[entry].Objects {
			a.remote = append(a.remote, o)
			size += len(o.Entry) + len(o.URL) + len(o.Name) + len(o.ETag) + len(o.SHA256)
		}
		urls[i] = job.Shown(entry)
	}
	if len(a.remote) > maxObjects || size > maxListBytes {
		a.at.Refuse("data.files", "", "data.files: its URLs stand for %d objects, with %d bytes of names; at most %d and %d are kept: join them to fewer and larger ones, as avgpipectl tokenize does",
			len(a.remote), size, maxObjects, maxListBytes)
	}
	if len(a.remote) > 0 {
		a.why = append(a.why, fmt.Sprintf("%s of %s are fetched before the job starts, as they are now: %s",
			words.Count(len(a.remote), "object"), words.Bytes(pinned.Bytes(a.remote)), strings.Join(urls, ", ")))
	}
}
