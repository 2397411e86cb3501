package outputdir

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/modeldir"
)

// asUser makes a run of this test binary a process of a user, who is also the group, that receives a model.
const asUser = "AVGPIPE_TEST_RECEIVES_AS"

func TestMain(m *testing.M) {
	text := os.Getenv(asUser)
	if text == "" {
		os.Exit(m.Run())
	}
	id, err := strconv.Atoi(text)
	if err == nil && id != 0 {
		err = access.User{UID: uint32(id), GIDs: []uint32{uint32(id)}}.Become()
	}
	if err == nil {
		err = Receive(os.Stdin)
	}
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
}

var model = map[string]string{"config.json": "{}", "model.safetensors": "weights"}

// pack writes the model's archive.
func pack(w io.Writer) error {
	out := tar.NewWriter(w)
	var err error
	for name, text := range model {
		err = errors.Join(err, out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, written := io.WriteString(out, text)
		err = errors.Join(err, written)
	}
	return errors.Join(err, out.Close())
}

// send sends the model to a process of a daemon's user.
func send(t *testing.T, daemon int, to Target) error {
	t.Helper()
	t.Setenv(asUser, strconv.Itoa(daemon))
	return Send(t.Context(), []string{os.Args[0]}, to, pack)
}

// holds fails the test unless a directory holds the model, readable for everybody, of an owner.
func holds(t *testing.T, dir string, owner int) {
	t.Helper()
	for name, want := range model {
		path := filepath.Join(dir, name)
		text, err := os.ReadFile(path)
		if err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", path, text, err)
			continue
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o644 || int(info.Sys().(*syscall.Stat_t).Uid) != owner {
			t.Errorf("%s: %v, %v; want rw-r--r-- of user %d", path, info, err, owner)
		}
	}
}

// The users of these tests.
const (
	daemonUser = 54321
	jobUser    = 54322
)

// directory makes a directory below one that everybody may enter.
func directory(t *testing.T, name string, uid, gid int, mode os.FileMode) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	for path := filepath.Dir(dir); path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, gid), os.Chmod(dir, mode)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestADaemonOfItsOwnUserWritesWhereBothMay, and says what is missing where one of them may not.
func TestADaemonOfItsOwnUserWritesWhereBothMay(t *testing.T) {
	envtest.Root(t) // to be two users
	user := access.User{UID: jobUser, GIDs: []uint32{jobUser, daemonUser}}
	shared := directory(t, "model", jobUser, daemonUser, 0o770)
	if err := send(t, daemonUser, Target{Dir: shared, User: user}); err != nil {
		t.Fatal(err)
	}
	holds(t, shared, daemonUser)

	own := directory(t, "model", jobUser, jobUser, 0o755)
	daemons := directory(t, "model", daemonUser, daemonUser, 0o755)
	for _, c := range []struct {
		dir, says, not string
	}{
		{own, "this process, user 54321, may not write to " + own + ": its mode is drwxr-xr-x for owner 54322", ""},
		{own, "to let it, chgrp 54321 " + own + "; chmod g+rwx", ""},
		{filepath.Join(own, "missing"), "to let it, mkdir -p " + own + "/missing; chgrp 54321", ""},
		{daemons, "user 54322 may not write to " + daemons, "to let it"},
		{shared, "holds the model of job", "/proc"},
	} {
		err := send(t, daemonUser, Target{Dir: c.dir, User: user})
		if err == nil || !strings.Contains(err.Error(), c.says) || c.not != "" && strings.Contains(err.Error(), c.not) {
			t.Errorf("%s: %v\nwant %q, and not %q", c.dir, err, c.says, c.not)
		}
	}
}

// TestAdviceIsWhatTheUserCanDo: he gives a directory of his own to a group of his own, and nothing else.
func TestAdviceIsWhatTheUserCanDo(t *testing.T) {
	envtest.Root(t) // to be two users
	const others = 54323
	own := directory(t, "own", jobUser, jobUser, 0o755)
	foreign := directory(t, "foreign", others, others, 0o755)
	for _, c := range []struct {
		dir       string
		groups    []uint32
		says, not string
	}{
		{own, []uint32{jobUser}, "no group has both user 54322 and the daemon's user 54321", "chgrp"},
		{foreign, []uint32{jobUser, daemonUser}, "may not write to " + foreign, "to let it"},
	} {
		err := send(t, daemonUser, Target{Dir: c.dir, User: access.User{UID: jobUser, GIDs: c.groups}})
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), c.not) {
			t.Errorf("%s: %v\nwant %q, and not %q", c.dir, err, c.says, c.not)
		}
	}
}

// TestWhatNoRightWouldChangeIsARefusal, by whose admission the job is refused.
func TestWhatNoRightWouldChangeIsARefusal(t *testing.T) {
	dir := t.TempDir()
	file, link, full := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "full")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink(dir, link), os.Mkdir(full, 0o700), os.WriteFile(full+"/mine", nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		file:                        "is not a directory",
		file + "/below":             "is a file, or lies below one",
		link:                        "is a symbolic link to " + dir,
		full:                        "it holds mine",
		"/proc/sys/model":           "is on proc, which stores no files",
		"/sys/kernel/a/model":       "is on sysfs, which stores no files",
		filepath.Join(dir, "fresh"): "",
	} {
		err := Target{Dir: path, User: access.User{UID: uint32(os.Geteuid())}}.Check()
		refusal, refused := errors.AsType[*modeldir.Refusal](err)
		if says == "" && err != nil || says != "" && (!refused || refusal.Dir != path || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", path, err, says)
		}
	}
}

// TestADaemonOfRootWritesAsTheUser, who need not let anybody else in.
func TestADaemonOfRootWritesAsTheUser(t *testing.T) {
	envtest.Root(t) // to be two users
	user := access.User{UID: jobUser, GIDs: []uint32{jobUser}}
	own := directory(t, "own", jobUser, jobUser, 0o700)
	fresh := filepath.Join(own, "a", "model")
	if err := send(t, 0, Target{Dir: fresh, User: user}); err != nil {
		t.Fatal(err)
	}
	holds(t, fresh, jobUser)
	roots := directory(t, "roots", 0, 0, 0o755)
	if err := send(t, 0, Target{Dir: filepath.Join(roots, "model"), User: user}); err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("a directory of root: %v", err)
	}
}

// TestAnExportThatWasInterruptedIsDoneAgain, by its own job alone.
func TestAnExportThatWasInterruptedIsDoneAgain(t *testing.T) {
	dir := t.TempDir()
	manifest := `{"magic": "AVGEXPORT", "version": 1, "job": "7", "name": "my-job", "complete": false, "files": []}`
	if err := os.WriteFile(filepath.Join(dir, modeldir.ManifestFile), []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	self := access.User{UID: uint32(os.Geteuid())}
	for _, again := range []bool{false, true} {
		for _, id := range []string{"8", "7"} {
			err := send(t, 0, Target{Dir: dir, User: self, From: modeldir.Source{Job: id, Name: "my-job"}, Again: again})
			if finished := again && id == "7"; (err == nil) != finished {
				t.Errorf("job %s, again %v: %v", id, again, err)
			}
		}
	}
	holds(t, dir, os.Geteuid())
}

// TestHalfAModelIsNoModel cuts what a daemon sends, as its death does, everywhere.
func TestHalfAModelIsNoModel(t *testing.T) {
	to := Target{Dir: filepath.Join(t.TempDir(), "model"), User: access.User{UID: uint32(os.Geteuid())}}
	header, err := json.Marshal(to)
	if err != nil {
		t.Fatal(err)
	}
	whole := bytes.NewBuffer(append(header, '\n'))
	if err := pack(whole); err != nil {
		t.Fatal(err)
	}
	whole.WriteString(trailer)
	cuts := []int{0, 1, len(header), whole.Len() - 1, whole.Len() - len(trailer)}
	for n := len(header) + 1; n < whole.Len(); n += 256 {
		cuts = append(cuts, n)
	}
	for _, n := range cuts {
		if err := Receive(bytes.NewReader(whole.Bytes()[:n])); err == nil {
			t.Errorf("%d of %d bytes are taken for a model", n, whole.Len())
		}
		if entries, err := os.ReadDir(filepath.Dir(to.Dir)); err != nil || len(entries) > 0 {
			t.Fatalf("%d of %d bytes leave %v, %v", n, whole.Len(), entries, err)
		}
	}
	if err := Receive(bytes.NewReader(slices.Clone(whole.Bytes()))); err != nil {
		t.Fatal(err)
	}
	holds(t, to.Dir, os.Geteuid())
}

// TestTheSendersErrorIsTold, not what the process makes of half an archive.
func TestTheSendersErrorIsTold(t *testing.T) {
	to := Target{Dir: filepath.Join(t.TempDir(), "model"), User: access.User{UID: uint32(os.Geteuid())}}
	damaged := errors.New("the shard is damaged")
	t.Setenv(asUser, "0")
	err := Send(t.Context(), []string{os.Args[0]}, to, func(io.Writer) error { return damaged })
	if !errors.Is(err, damaged) {
		t.Error(err)
	}
	if err := Send(t.Context(), []string{"/nonexistent"}, to, pack); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
