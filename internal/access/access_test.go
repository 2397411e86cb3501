package access

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// stranger owns nothing here.
var stranger = &Opener{User: &User{UID: 54321, GIDs: []uint32{54321}}}

// openers are a stranger's, one of them keeping directories.
func openers(t *testing.T) map[string]*Opener {
	keeping, release := stranger.Keeping()
	t.Cleanup(release)
	return map[string]*Opener{"following": stranger, "keeping": keeping}
}

// tree writes files below a directory that everybody may enter.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // The test is about others.
			t.Fatal(err)
		}
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // The test is about others.
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // The test is about others.
			t.Fatal(err)
		}
	}
	return dir
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// TestPermissionBits holds every class of user against every mode.
func TestPermissionBits(t *testing.T) {
	const owner, group = 4001, 4002
	users := map[string]User{
		"owner": {UID: owner, GIDs: []uint32{group}}, "group": {UID: owner + 1, GIDs: []uint32{7, group}},
		"others": {UID: owner + 1, GIDs: []uint32{7}}, "root": {},
	}
	for mode := range uint32(0o1000) {
		p := &place{path: "/f", stat: unix.Stat_t{Mode: unix.S_IFREG | mode, Uid: owner, Gid: group}}
		for class, shift := range map[string]int{"owner": 6, "group": 3, "others": 0} {
			want := mode>>shift&4 != 0
			err := permits(p, users[class], mayRead, class, "read")
			if (err == nil) != want {
				t.Fatalf("mode %04o, %s: %v", mode, class, err)
			}
			if err != nil && (!errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "/f")) {
				t.Fatalf("error %v", err)
			}
		}
		if err := permits(p, users["root"], mayRead, "root", "read"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTheWholeWayIsChecked: every directory up to a file, also behind links, must let the user through.
func TestTheWholeWayIsChecked(t *testing.T) {
	dir := tree(t, map[string]string{"open/file": "1", "open/secret": "2", "shut/in/file": "3", "list/file": "4"})
	chmod(t, filepath.Join(dir, "open/secret"), 0o600)
	chmod(t, filepath.Join(dir, "shut"), 0o700)
	chmod(t, filepath.Join(dir, "list"), 0o711)
	for name, target := range map[string]string{
		"open/out": "../shut/in/file", "open/round": "round", "open/up": "../open/../list/file", "open/absolute": dir + "/open/file",
		"open/dir": "../open", "open/broken": "nothing",
	} {
		link(t, target, filepath.Join(dir, name))
	}
	for name, want := range map[string]string{
		"open/file": "", "list/file": "", "open/up": "", "open/absolute": "", "open/dir/dir/file": "",
		"open/secret":       "user 54321 may not read " + dir + "/open/secret",
		"shut/in/file":      "may not enter " + dir + "/shut",
		"open/out":          "may not enter " + dir + "/shut",
		"open/round":        "more than 40 links",
		"open/none":         "no such file",
		"open/broken":       "no such file",
		"open/file/beneath": "not a directory",
		"open":              "is a directory, not a file",
	} {
		for kind, o := range openers(t) {
			for range 2 { // the second time a directory may have been kept
				content, err := o.ReadFile(filepath.Join(dir, name), 10)
				if want == "" && (err != nil || len(content) != 1) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s, %s: %q, %v, want %q", kind, name, content, err, want)
				}
				if want != "" {
					continue
				}
				if i, err := o.Stat(filepath.Join(dir, name)); err != nil || i.Readable() != nil || i.Size != 1 {
					t.Errorf("%s, look at %s: %v, %v", kind, name, err, i.Readable())
				}
			}
		}
	}
	if _, err := stranger.Open("relative", 0); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("a relative path: %v", err)
	}
	if i, err := stranger.Stat(filepath.Join(dir, "open/secret")); err != nil || !errors.Is(i.Readable(), fs.ErrPermission) {
		t.Errorf("look at a secret: %v, %v", err, i.Readable())
	}
}

// TestDirectoriesAreListedWithTheUsersRights, through links, by name.
func TestDirectoriesAreListedWithTheUsersRights(t *testing.T) {
	dir := tree(t, map[string]string{"open/b": "", "open/a": "", "list/c": ""})
	chmod(t, filepath.Join(dir, "list"), 0o711)
	link(t, "open", filepath.Join(dir, "through"))
	entries, err := stranger.ReadDir(filepath.Join(dir, "through"))
	if err != nil || len(entries) != 2 || entries[0].Name() != "a" {
		t.Errorf("%v, %v", entries, err)
	}
	if _, err := stranger.ReadDir(filepath.Join(dir, "list")); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "may not list") {
		t.Errorf("error %v", err)
	}
	if i, err := stranger.Stat(filepath.Join(dir, "list")); err != nil || !errors.Is(i.Readable(), fs.ErrPermission) {
		t.Errorf("look at it: %v, %v", err, i.Readable())
	}
}

// TestOnlyRegularFilesAreOpened, without waiting for anybody at the other end of a pipe.
func TestOnlyRegularFilesAreOpened(t *testing.T) {
	dir := tree(t, nil)
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o666); err != nil {
		t.Fatal(err)
	}
	link(t, "/dev/zero", filepath.Join(dir, "zero"))
	for name, want := range map[string]string{"pipe": "is a pipe, not a file", "zero": "is a device, not a file"} {
		for _, o := range []*Opener{nil, stranger} {
			if _, err := o.Open(filepath.Join(dir, name), 0); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", name, err, want)
			}
		}
	}
}

// TestFilesAreBounded by their size, and by what they turn out to hold.
func TestFilesAreBounded(t *testing.T) {
	path := filepath.Join(tree(t, map[string]string{"f": "12345"}), "f")
	if _, err := stranger.Open(path, 4); err == nil || !strings.Contains(err.Error(), "has 5 bytes; at most 4") {
		t.Errorf("error %v", err)
	}
	if content, err := stranger.ReadFile(path, 5); err != nil || string(content) != "12345" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := stranger.ReadFile("/proc/cpuinfo", 5); err == nil || !strings.Contains(err.Error(), "more than 5 bytes") {
		t.Errorf("a file that has no size: %v", err)
	}
}

// TestWhatIsSwappedWhileItIsOpenedIsNotRead: whatever is put in the place of a checked directory or file in the middle of opening
// it, a file that the user may not read is never opened.
func TestWhatIsSwappedWhileItIsOpenedIsNotRead(t *testing.T) {
	dir := tree(t, map[string]string{"mine/file": "mine", "yours/file": "yours"})
	chmod(t, filepath.Join(dir, "yours"), 0o700)
	path := filepath.Join(dir, "at", "file")
	link(t, "mine", filepath.Join(dir, "at"))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // swaps the directory on the way
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			next := filepath.Join(dir, "next")
			_ = os.Symlink([]string{"mine", "yours"}[i%2], next)
			_ = os.Rename(next, filepath.Join(dir, "at"))
		}
	}()
	read, refused := 0, 0
	for range 5000 {
		f, err := stranger.Open(path, 0)
		if err != nil {
			if !errors.Is(err, fs.ErrPermission) {
				t.Fatal(err)
			}
			refused++
			continue
		}
		content, err := io.ReadAll(f)
		if string(content) != "mine" || errors.Join(err, f.Close()) != nil {
			t.Fatalf("read %q, %v", content, err)
		}
		read++
	}
	close(stop)
	<-stopped
	if read == 0 || refused == 0 {
		t.Logf("%d read, %d refused: the swaps were not in the way", read, refused)
	}
}

// TestNothingStaysOpen: neither after success nor after a refusal.
func TestNothingStaysOpen(t *testing.T) {
	dir := tree(t, map[string]string{"a/f": "1", "shut/f": "2"})
	chmod(t, filepath.Join(dir, "shut"), 0o700)
	link(t, "a", filepath.Join(dir, "l"))
	link(t, "circle", filepath.Join(dir, "circle"))
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	keeping, release := stranger.Keeping()
	for _, o := range []*Opener{stranger, keeping, keeping} {
		for _, name := range []string{"l/f", "a", "shut/f", "none", "circle", "l/../a/f", "a/f/g"} {
			path := filepath.Join(dir, "x")[:len(dir)+1] + name
			_, _ = o.ReadFile(path, 100)
			_, _ = o.Stat(path)
			_, _ = o.ReadDir(path)
			_, _ = o.ReadFile(path, 0)
		}
	}
	release()
	if after := count(); after != before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

// TestOneDirectoryIsKept: of many directories, read by many goroutines, and each file is the right one.
func TestOneDirectoryIsKept(t *testing.T) {
	files := map[string]string{}
	for i := range 100 {
		name := strconv.Itoa(i)
		files[name+"/f"] = name
	}
	dir := tree(t, files)
	keeping, release := stranger.Keeping()
	var readers errgroup.Group
	for range 4 {
		readers.Go(func() error {
			for name, want := range files {
				if got, err := keeping.ReadFile(filepath.Join(dir, name), 10); err != nil || string(got) != want {
					return fmt.Errorf("%s: %q, %w", name, got, err)
				}
			}
			return nil
		})
	}
	if err := readers.Wait(); err != nil {
		t.Error(err)
	}
	if keeping.last.path == "" {
		t.Error("no directory is kept")
	}
	release()
	if keeping.last.path != "" {
		t.Errorf("%s is kept after release", keeping.last.path)
	}
}

// asStranger takes root's rights from this thread, until it is called back.
func asStranger(t *testing.T) (back func()) {
	t.Helper()
	const keep = ^uintptr(0) // -1
	become := func(id uintptr) {
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, keep, id, keep); err != 0 {
			t.Fatal(err)
		}
	}
	runtime.LockOSThread() // a system call, unlike package syscall, changes one thread alone
	become(uintptr(stranger.User.UID))
	return func() {
		become(0)
		runtime.UnlockOSThread()
	}
}

// TestOwnRightsAreExplained: where this process itself may not read, the error tells the mode and the owner.
func TestOwnRightsAreExplained(t *testing.T) {
	dir := tree(t, map[string]string{"a": "x", "shut/b": "y"})
	chmod(t, filepath.Join(dir, "a"), 0)
	chmod(t, filepath.Join(dir, "shut"), 0)
	defer chmod(t, filepath.Join(dir, "shut"), 0o700)
	if os.Geteuid() == 0 { // who may read everything
		defer asStranger(t)()
	}
	var own *Opener
	for name, want := range map[string]string{"a": "may not read", "shut/b": "may not enter"} {
		_, err := own.Open(filepath.Join(dir, name), 0)
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "its mode is") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestWritableAsksForBoth: the user and this process must both be allowed to make files, and what is written by the descriptor goes
// to the directory that was judged, whatever has taken its name.
func TestWritableAsksForBoth(t *testing.T) {
	dir := tree(t, map[string]string{"closed/f": "", "open/f": "", "file": ""})
	closed, open := filepath.Join(dir, "closed"), filepath.Join(dir, "open")
	chmod(t, open, 0o777)
	for path, says := range map[string]string{
		closed:                        "user 54321 may not write to " + closed,
		filepath.Join(dir, "file"):    "not a directory",
		filepath.Join(dir, "missing"): "no such file",
	} {
		if f, err := stranger.Writable(path); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v; want %q", path, f, err, says)
		}
	}
	f, err := stranger.Writable(open)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Rename(open, open+"-moved"); err != nil {
		t.Fatal(err)
	}
	link(t, closed, open)
	if err := os.WriteFile(fmt.Sprintf("/proc/self/fd/%d/new", f.Fd()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(open+"-moved", "new")); err != nil {
		t.Error(err)
	}
}
