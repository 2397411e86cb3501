package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	prefix   = "/usr"
	unitPath = prefix + "/lib/systemd/system/avgpiped.service"
	// mostExposure is what `systemd-analyze security` may find at most, in tenths: 0 is sealed, 100 is open. 30 and more
	// is what it calls medium.
	mostExposure = "25"
)

// The unit is tested as it is installed: with the program, the configuration and the paths that `make install` gives it.
func TestInstallation(t *testing.T) {
	requireTool(t, "make")
	to, bin := t.TempDir(), t.TempDir()
	testRefusesToBuild(t, to, bin)
	run(t, root, "make", "--no-print-directory", "build", "BIN="+bin)
	to = filepath.Join(to, "not", "yet") // the installation makes it
	install(t, to, bin)
	unit := readAt(t, to, unitPath)
	start := strings.Fields(setting(t, unit, "ExecStart"))
	program := filepath.Join(to, start[0])

	t.Run("unit's flags are the program's", func(t *testing.T) { testFlags(t, program, start[1:]) })
	t.Run("configuration's keys are the program's", func(t *testing.T) { testConfiguration(t, program, readAt(t, to, "/etc/avgpipe/avgpiped.yaml")) })
	t.Run("files named in the unit are installed", func(t *testing.T) {
		for _, word := range start {
			if !strings.HasPrefix(word, "/") {
				continue
			}
			if _, err := os.Stat(filepath.Join(to, word)); err != nil {
				t.Errorf("ExecStart names %s, which `make install` does not install: %v", word, err)
			}
		}
	})
	t.Run("an edited configuration is kept", func(t *testing.T) { testKeepsConfiguration(t, to, bin) })
	t.Run("restarts", func(t *testing.T) {
		for key, want := range map[string]string{"Restart": "always", "RestartPreventExitStatus": "78", "StartLimitIntervalSec": "0"} {
			if now := setting(t, unit, key); now != want {
				t.Errorf("the unit says %s=%s; want %s", key, now, want)
			}
		}
		testRestarts(t, to, unit, start[0])
	})
	t.Run("uninstall removes what install put", func(t *testing.T) { testUninstall(t, bin) })
	t.Run("systemd-analyze verify", func(t *testing.T) { testVerify(t, to, unit, start[0]) })
	t.Run("systemd-analyze security", func(t *testing.T) {
		requireTool(t, "systemd-analyze")
		run(t, to, "systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold="+mostExposure, filepath.Join(to, unitPath))
	})
	t.Run("users and directories", func(t *testing.T) { testUsers(t, to, unit) })
}

// testRefusesToBuild installs before anything was built: as root there may be no Go, or another.
func testRefusesToBuild(t *testing.T, to, bin string) {
	command := exec.CommandContext(t.Context(), "make", "--no-print-directory", "install", "DESTDIR="+to, "PREFIX="+prefix, "BIN="+bin)
	command.Dir = root
	output, err := command.CombinedOutput()
	if err == nil || !strings.Contains(string(output), "make build") {
		t.Errorf("an installation of nothing: %v\n%s", err, output)
	}
	if entries, err := os.ReadDir(to); err != nil || len(entries) > 0 {
		t.Errorf("it installed %v, %v", entries, err)
	}
}

// testUninstall compares a tree before an installation and after its removal, between files of others.
func testUninstall(t *testing.T, bin string) {
	to := t.TempDir()
	for _, file := range []string{prefix + "/bin/other", prefix + "/share/man/man1/other.1", "/etc/avgpipe/avgpiped.yaml", "/var/lib/avgpipe/raft/wal/meta"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(to, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(to, file), []byte("somebody's"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	before := run(t, to, "find", ".", "-printf", "%P %y %m\n")
	install(t, to, bin)
	install(t, to, bin) // again, as an upgrade does
	installed := run(t, to, "find", ".", "-type", "f", "-printf", "%P\n")
	for _, file := range []string{
		"usr/lib/systemd/system/avgpiped-gpu-devices.service", "usr/share/avgpipe/avgpiped-gpu.conf", "usr/share/avgpipe/avgpiped-ucx.conf",
		"usr/bin/avgpiped", "usr/bin/avgpipectl", "usr/share/man/man1/avgpipectl-submit.1", "usr/share/man/man8/avgpiped.8",
		"usr/share/bash-completion/completions/avgpipectl", "usr/share/zsh/site-functions/_avgpipectl", "usr/share/fish/vendor_completions.d/avgpipectl.fish",
	} {
		if !slices.Contains(strings.Split(installed, "\n"), file) {
			t.Errorf("%s is not installed", file)
		}
	}
	run(t, root, "make", "--no-print-directory", "uninstall", "DESTDIR="+to, "PREFIX="+prefix, "BIN="+bin)
	sorted := func(text string) []string { return slices.Sorted(strings.SplitSeq(text, "\n")) }
	if after := run(t, to, "find", ".", "-printf", "%P %y %m\n"); !slices.Equal(sorted(before), sorted(after)) {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// testFlags holds the flags in ExecStart against the program's help.
func testFlags(t *testing.T, program string, arguments []string) {
	help := run(t, root, program, "--help")
	known := regexp.MustCompile(`(?m)--[a-z][a-z-]*`).FindAllString(help, -1)
	used := 0
	for _, argument := range arguments {
		flag, _, _ := strings.Cut(argument, "=")
		if !strings.HasPrefix(flag, "--") {
			continue
		}
		used++
		if !slices.Contains(known, flag) {
			t.Errorf("ExecStart passes %s, which avgpiped does not know; it knows %s", flag, strings.Join(known, " "))
		}
	}
	if used == 0 {
		t.Errorf("ExecStart passes no flag: %q", arguments)
	}
}

// testConfiguration holds the keys and defaults that the shipped configuration shows against those in the program's help.
func testConfiguration(t *testing.T, program, config string) {
	shown := pairs(regexp.MustCompile(`(?m)^#?([a-z_]+): (.+)$`), config)
	known := pairs(regexp.MustCompile(`(?m)^[ *] ([a-z_]+) +[^-].*\(default: (.+)\)$`), run(t, root, program, "--help"))
	if len(known) == 0 {
		t.Fatal("the program's help lists no key with a default")
	}
	for key, initial := range known {
		if shown[key] != initial {
			t.Errorf("deploy/avgpiped.yaml shows %s: %q; the program's default is %q", key, shown[key], initial)
		}
	}
	for key := range shown {
		if known[key] == "" {
			t.Errorf("deploy/avgpiped.yaml shows %s, which the program does not know", key)
		}
	}
}

// pairs collects what a pattern's two groups match.
func pairs(pattern *regexp.Regexp, text string) map[string]string {
	found := map[string]string{}
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		found[match[1]] = match[2]
	}
	return found
}

func testKeepsConfiguration(t *testing.T, to, bin string) {
	const config = "/etc/avgpipe/avgpiped.yaml"
	shipped, edited := readAt(t, to, config), "# edited by the administrator\n"
	if err := os.WriteFile(filepath.Join(to, config), []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	install(t, to, bin)
	if now := readAt(t, to, config); now != edited {
		t.Errorf("a second `make install` replaced %s", config)
	}
	if err := os.WriteFile(filepath.Join(to, config), []byte(shipped), 0o644); err != nil {
		t.Fatal(err)
	}
}

// testVerify gives systemd the unit with the path of the program as installed under the root to, since it looks whether
// the program exists.
func testVerify(t *testing.T, to, unit, program string) {
	requireTool(t, "systemd-analyze")
	copied := filepath.Join(t.TempDir(), "avgpiped.service")
	here := strings.Replace(unit, "ExecStart="+program, "ExecStart="+filepath.Join(to, program), 1)
	if err := os.WriteFile(copied, []byte(here), 0o644); err != nil {
		t.Fatal(err)
	}
	if said := run(t, to, "systemd-analyze", "verify", "--man=no", copied); strings.Contains(said, "avgpiped.service") {
		t.Errorf("systemd-analyze verify: %s", said)
	}
}

// testUsers creates the user and the directories in the root to and holds them against the unit.
func testUsers(t *testing.T, to, unit string) {
	requireTool(t, "systemd-sysusers")
	run(t, to, "systemd-sysusers", "--root="+to, filepath.Join(to, prefix, "lib/sysusers.d/avgpiped.conf"))
	for file, name := range map[string]string{"etc/passwd": setting(t, unit, "User"), "etc/group": setting(t, unit, "Group")} {
		entries := readAt(t, to, file)
		if !strings.Contains("\n"+entries, "\n"+name+":") {
			t.Errorf("the unit wants %s in /%s, which has\n%s", name, file, entries)
		}
	}
	directories := readAt(t, to, prefix+"/lib/tmpfiles.d/avgpiped.conf")
	want := "d /var/lib/" + setting(t, unit, "StateDirectory") + " " + setting(t, unit, "StateDirectoryMode") + " " +
		setting(t, unit, "User") + " " + setting(t, unit, "Group")
	if !strings.Contains(directories, want) {
		t.Errorf("deploy/avgpiped.tmpfiles.conf disagrees with the unit, which wants %q:\n%s", want, directories)
	}
}

// setting returns the value of the only line KEY=VALUE of a unit.
func setting(t *testing.T, unit, key string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+key+`=(.+)$`).FindAllStringSubmatch(unit, -1)
	if len(found) != 1 {
		t.Fatalf("the unit has %d lines %s=, want 1", len(found), key)
	}
	return found[0][1]
}

// install installs what lies in bin below the root to, as a package would.
func install(t *testing.T, to, bin string) {
	t.Helper()
	run(t, root, "make", "--no-print-directory", "install", "DESTDIR="+to, "PREFIX="+prefix, "BIN="+bin)
}

// readAt returns the text of the file name below the root to.
func readAt(t *testing.T, to, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(to, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run runs a program and returns what it printed; the test ends when it fails. Variables of an outer make are withheld
// from an inner one.
func run(t *testing.T, dir, program string, arguments ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), program, arguments...)
	command.Dir = dir
	command.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "MFLAGS=")
	output, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(arguments, " "), err, output)
	}
	return string(output)
}
