package lint

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// An ending is what happens to a daemon that runs under the shipped unit, and what systemd makes of it.
type ending struct {
	name  string
	how   string // shell commands; UNIT is the unit, PID its main process
	wants string // pattern of "ActiveState Result NRestarts", which bash and Go read alike
}

var endings = []ending{
	{"killed", `kill -KILL $PID`, `active success 1`},
	{"aborted", `kill -ABRT $PID`, `active success 1`}, // the Go runtime ends with 2, as after a panic
	{"crashed", `kill -SEGV $PID`, `active success 1`},
	{"frozen", `kill -STOP $PID`, `active success 1`}, // until the watchdog notices
	{"told-by-others", `kill -TERM $PID`, `active success 1`},
	{"reloaded", `systemctl --user reload $UNIT`, `active success 0`},
	{"stopped", `systemctl --user stop $UNIT`, `inactive success 0`},
	{"refused", "", `failed exit-code 0`},
	{"read-only", "", `[a-z]+ [a-z-]+ (1[2-9]|[2-9][0-9]|[0-9]{3})`},
}

// showing are shell functions. until_shows waits until systemd shows what is wanted of a unit and prints what it shows. All waits of a
// script together are bounded.
const showing = `
shows() { systemctl --user show $1 -p ActiveState,Result,NRestarts | sort | sed 's/.*=//' | paste -sd' ' | awk '{print $1,$3,$2}'; }
until_shows() { while s=$(shows $1); ! [[ $s =~ ^($2)$ ]] && [ $SECONDS -lt 90 ]; do sleep 0.1; done; echo "$1 $s"; }
`

// testRestarts has the real systemd, as a user's manager in namespaces and a control group of its own, run the installed program. It
// starts it again after every end but a refused configuration and an order of systemctl, and never gives up.
func testRestarts(t *testing.T, to, unit, program string) {
	requireTool(t, "systemctl")
	requireTool(t, "unshare")
	group := controlGroup(t)
	dir, err := os.MkdirTemp("", "unit-") //nolint:usetesting // that one has a name too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	units := filepath.Join(dir, "config/systemd/user")
	write(t, filepath.Join(units, "basic.target"), "[Unit]\nDefaultDependencies=no\n")
	var script strings.Builder
	script.WriteString(showing)
	for _, e := range endings {
		write(t, filepath.Join(units, e.name+".service"), userUnit(unit, filepath.Join(to, program), filepath.Join(dir, e.name+".yaml")))
		write(t, filepath.Join(dir, e.name+".yaml"), fmt.Sprintf("state_dir: %s/%s\nsocket: %s/%[2]s.sock\n", dir, e.name, dir))
		fmt.Fprintf(&script, "systemctl --user start --no-block %s\n", e.name)
	}
	write(t, filepath.Join(dir, "refused.yaml"), "sockt: /x\n")
	write(t, filepath.Join(dir, "read-only.yaml"), fmt.Sprintf("state_dir: %s/fixed/state\nsocket: %[1]s/fixed.sock\n", dir))
	for _, e := range endings {
		if e.how != "" {
			fmt.Fprintf(&script, "UNIT=%s; until_shows $UNIT 'active success 0' >/dev/null\n", e.name)
			fmt.Fprintf(&script, "PID=$(systemctl --user show $UNIT -p MainPID --value)\n%s\n", e.how)
		}
	}
	for _, e := range endings {
		fmt.Fprintf(&script, "until_shows %s '%s'\n", e.name, e.wants)
	}
	said := underSystemd(t, dir, group, script.String())
	for _, e := range endings {
		if !regexp.MustCompile(`(?m)^` + e.name + ` ` + e.wants + `$`).MatchString(said) {
			t.Errorf("a daemon that was %s: systemd does not show %q", e.name, e.wants)
		}
	}
	if t.Failed() {
		t.Logf("systemd shows\n%s", said)
	}
}

// userUnit is what the shipped unit says about ends and starts, as a user's manager takes it, with the times made short.
func userUnit(unit, program, config string) string {
	kept := regexp.MustCompile(`(?m)^(\[Unit\]|\[Service\]|(StartLimit|Restart|Success|Watchdog|Timeout|Kill|SendSIG|OOM|Type|Notify|ExecReload)\w*=.*)$`)
	lines := kept.FindAllString(unit, -1)
	return strings.Join(lines, "\n") + fmt.Sprintf("\nExecStart=%s --config %s\nRestartSec=100ms\nWatchdogSec=3s\n", program, config)
}

// underSystemd runs a shell script in namespaces in which a user's systemd is the manager, and returns what it printed.
func underSystemd(t *testing.T, dir, group, script string) string {
	t.Helper()
	write(t, filepath.Join(dir, "script"), script)
	const inside = `set -eu
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir $DIR/fixed
mount -t tmpfs -o ro tmpfs $DIR/fixed
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p /run/systemd/system /run/user
export HOME=$DIR XDG_CONFIG_HOME=$DIR/config XDG_RUNTIME_DIR=/run/user
systemd --user --unit=basic.target >$DIR/manager.log 2>&1 &
for i in $(seq 100); do if [ -S /run/user/systemd/private ]; then break; fi; sleep 0.1; done
bash $DIR/script 2>&1`
	command := exec.CommandContext(t.Context(), "bash", "-c",
		`echo $$ >"$GROUP/cgroup.procs" && exec unshare --mount --cgroup --pid --fork --kill-child bash -c "$INSIDE"`)
	command.Env = append(os.Environ(), "DIR="+dir, "GROUP="+group, "INSIDE="+inside)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	if manager, readErr := os.ReadFile(filepath.Join(dir, "manager.log")); err != nil && readErr == nil {
		t.Logf("systemd: %s", manager)
	}
	if err != nil && strings.Contains(out.String(), "unshare failed") {
		envtest.Missing(t, "no namespaces can be made here: %s", out.String())
	}
	if err != nil {
		t.Errorf("under systemd: %v\n%s", err, out.String())
	}
	return out.String()
}

// controlGroup makes a control group that goes with the test. systemd moves all processes of its own group, so it gets one in
// which there is nobody else.
func controlGroup(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`(?m)^\S+ \S+ \S+ / (\S+) .* - cgroup2 `).FindSubmatch(mounts)
	if os.Getuid() != 0 || at == nil {
		envtest.Missing(t, "a control group of its own for systemd needs root, and cgroup2")
	}
	group := filepath.Join(string(at[1]), "avgpipe-test-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		envtest.Missing(t, "no control group can be made here: %v", err)
	}
	t.Cleanup(func() {
		command := exec.Command("find", group, "-depth", "-type", "d", "-delete")
		if said, err := command.CombinedOutput(); err != nil {
			t.Errorf("remove the control group %s: %v: %s", group, err, said)
		}
	})
	return group
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
