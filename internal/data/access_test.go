package data

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPermissionBits holds every class of user against every mode.
func TestPermissionBits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Skip("no owners on this system")
	}
	owner, group := stat.Uid, stat.Gid
	if owner == 0 {
		owner = 4001 // root may read everything; give the file away
		group = 4002
		if err := os.Chown(path, int(owner), int(group)); err != nil {
			t.Skip("cannot give a file away here")
		}
	}
	users := map[string]User{
		"owner": {UID: owner, GIDs: []uint32{group}}, "group": {UID: owner + 1, GIDs: []uint32{7, group}},
		"others": {UID: owner + 1, GIDs: []uint32{7}}, "root": {},
	}
	for mode := range os.FileMode(0o1000) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		for class, shift := range map[string]int{"owner": 6, "group": 3, "others": 0} {
			want := mode>>shift&4 != 0
			err := permits(path, info, users[class], 4, "read")
			if (err == nil) != want {
				t.Fatalf("mode %04o, %s: %v", mode, class, err)
			}
			if err != nil && (!errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), path)) {
				t.Fatalf("error %v", err)
			}
		}
		if err := permits(path, info, users["root"], 4, "read"); err != nil {
			t.Fatal(err)
		}
	}
}

// stranger owns nothing here.
var stranger = User{UID: 54321, GIDs: []uint32{54321}}

// TestReadableLooksAtTheWholeWay: every directory up to a file, also behind links, must let the user through.
func TestReadableLooksAtTheWholeWay(t *testing.T) {
	dir := corpus(t, map[string]string{"open/file": "1", "open/secret": "2", "shut/in/file": "3", "list/file": "4"})
	for path := dir; path != os.TempDir() && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil { //nolint:gosec // The test is about others.
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"open/file": 0o644, "shut/in/file": 0o644, "shut": 0o700, "list": 0o711, "list/file": 0o644} {
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"open/out": "../shut/in/file", "open/round": "round", "open/up": "../open/../list/file", "open/absolute": dir + "/open/file",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"open/file": "", "open": "", "list/file": "", "open/up": "", "open/absolute": "",
		"open/secret":  "may not read",
		"shut/in/file": "may not enter " + dir + "/shut",
		"open/out":     "may not enter " + dir + "/shut",
		"list":         "may not list",
		"open/round":   "more than 40 links",
		"open/none":    "no such file",
	} {
		err := Readable(filepath.Join(dir, name), stranger)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := Readable("relative", stranger); err == nil {
		t.Error("a relative path passes")
	}
	for pattern, want := range map[string]string{
		"open/file": "", "**/in/*": "may not list " + dir + "/list", "shut/in/*": "may not enter", "open/*e*": "secret",
	} {
		_, err := List(t.Context(), Config{Files: []string{filepath.Join(dir, pattern)}, Sequence: 1, Access: Access(stranger)})
		if want == "" {
			if err != nil {
				t.Errorf("%s: %v", pattern, err)
			}
			continue
		}
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Key != "data.files[0]" || !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a refusal under its key that says %q", pattern, err, want)
		}
	}
}

// TestUnreadableSaysWhy: where this process itself may not read, the error tells the mode and the owner.
func TestUnreadableSaysWhy(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	dir := corpus(t, map[string]string{"a": strings.Repeat("x", 100)})
	if err := os.Chmod(filepath.Join(dir, "a"), 0); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{Files: []string{dir}, Sequence: 4})
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "its mode is ----------") {
		t.Errorf("error %v", err)
	}
}
