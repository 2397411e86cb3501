// Package hosts makes one machine several: each host is a network namespace with an address of its own on a common bridge. Links can be made slow,
// cut or led through proxies, and disks slow. It needs root and the programs ip, tc and nft (Debian: iproute2, nftables).
//
//	if !inside {
//		return hosts.Enter(ctx) // the program again, in namespaces that take everything with them
//	}
//	network, err := hosts.New(ctx, "a", "b", "c")
//	err = network.Host("b").Command("avgpiped", "--config", file).Start()
//	heal, err := network.Cut(ctx, []string{"a"}, []string{"b", "c"})
package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// InsideFlag is the flag that Enter adds to the program's arguments.
const InsideFlag = "-inside"

// leaveBound is how long a program may take to end in order after it was told to.
const leaveBound = time.Minute

// Enter runs this program again, with InsideFlag before its arguments, in mount, process and network namespaces of its own: no process, mount or
// interface outlives it, however it ends. It returns when it has ended.
func Enter(ctx context.Context) error {
	command := exec.CommandContext(ctx, "/proc/self/exe", append([]string{InsideFlag}, os.Args[1:]...)...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
	}
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = leaveBound
	return command.Run()
}

// Prepare makes the namespaces usable that Enter made: they see their own processes, and commands on hosts see what is mounted later. Their first process
// runs this program once more, and ends as that does: whose parent has ended becomes its child, and it takes note of their ends, as init does.
func Prepare(ctx context.Context) error {
	if os.Getpid() != 1 {
		return nil // the first one has done it
	}
	if err := syscall.Mount("", "/", "", syscall.MS_SHARED|syscall.MS_REC, ""); err != nil {
		return fmt.Errorf("share mounts: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// ip keeps names of namespaces below /run/netns, which is the machine's outside.
	if err := syscall.Mount("none", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	return beInit(ctx)
}

// beInit runs this program, and exits with its status. It returns when that cannot be done.
func beInit(ctx context.Context) error {
	command := exec.Command("/proc/self/exe", os.Args[1:]...) //nolint:noctx,gosec // it is told to end, and is this program
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := command.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Signal(syscall.SIGTERM) })
	defer stop()
	for {
		var how syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &how, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return fmt.Errorf("wait for all processes: %w", err)
		case ended == command.Process.Pid && how.Exited():
			os.Exit(how.ExitStatus())
		case ended == command.Process.Pid:
			return fmt.Errorf("%s ended: %v", command, how.Signal())
		}
	}
}

// Network is some hosts on a bridge.
type Network struct {
	bridge string
	hosts  []*Host

	cuts atomic.Int64 // that there have been
}

// Host is one of them.
type Host struct {
	Name    string
	Address string // without a port
	id      string // its own among the hosts of all networks
}

// networks counts those that were made; each has addresses of its own.
var networks atomic.Int32

// New makes hosts, 254 at most. The namespaces must have been prepared.
func New(ctx context.Context, names ...string) (*Network, error) {
	id := networks.Add(1)
	n := &Network{bridge: fmt.Sprintf("bridge%d", id)}
	script := []string{"link set lo up", fmt.Sprintf("link add %s type bridge", n.bridge), fmt.Sprintf("link set %s up", n.bridge)}
	for i, name := range names {
		h := &Host{Name: name, Address: fmt.Sprintf("10.%d.%d.%d", 64+id/256%64, id%256, i+1), id: fmt.Sprintf("%d-%d", id, i)}
		n.hosts = append(n.hosts, h)
		script = append(script,
			"netns add "+h.namespace(), fmt.Sprintf("link add %s type veth peer name eth0 netns %s", h.port(), h.namespace()),
			fmt.Sprintf("link set %s master %s up", h.port(), n.bridge))
	}
	if err := execute(ctx, strings.Join(script, "\n"), "ip", "-batch", "-"); err != nil {
		return nil, err
	}
	for _, h := range n.hosts {
		inside := []string{"addr add " + h.Address + "/24 dev eth0", "link set eth0 up", "link set lo up"}
		if err := execute(ctx, strings.Join(inside, "\n"), "ip", "-n", h.namespace(), "-batch", "-"); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (h *Host) namespace() string { return "host" + h.id }
func (h *Host) port() string      { return "port" + h.id }

// Remove takes the hosts away. Processes on them go on, without a network.
func (n *Network) Remove(ctx context.Context) error {
	script := []string{"link del " + n.bridge}
	for _, h := range n.hosts {
		script = append(script, "netns del "+h.namespace())
	}
	return execute(context.WithoutCancel(ctx), strings.Join(script, "\n"), "ip", "-batch", "-")
}

// Hosts are all of them.
func (n *Network) Hosts() []*Host { return n.hosts }

// Host finds one that is there.
func (n *Network) Host(name string) *Host {
	return n.hosts[slices.IndexFunc(n.hosts, func(h *Host) bool { return h.Name == name })]
}

// Command is a command that runs on the host. Its process is that of the program: ip replaces itself.
func (h *Host) Command(program string, arguments ...string) *exec.Cmd {
	return exec.Command("ip", slices.Concat([]string{"netns", "exec", h.namespace(), program}, arguments)...) //nolint:noctx // its caller ends it by signals
}

// Limit makes what a host sends and what it gets as slow as so many bits per second; 0 takes the limit away. The queue holds
// what 50 ms send.
func (n *Network) Limit(ctx context.Context, name string, bits int64) error {
	h := n.Host(name)
	for _, at := range [][]string{{"-n", h.namespace(), "qdisc"}, {"qdisc"}} {
		device := "eth0"
		if len(at) == 1 {
			device = h.port()
		}
		if bits == 0 {
			if err := execute(ctx, "", "tc", append(at, "del", "dev", device, "root")...); err != nil {
				return err
			}
			continue
		}
		// A bucket of 2 ms holds a timer's tick at any rate; 64 KiB is the largest segment that a virtual interface hands over.
		burst := max(bits/8/500, 64<<10)
		if err := execute(ctx, "", "tc", append(at, "replace", "dev", device, "root", "tbf", "rate", strconv.FormatInt(bits, 10),
			"burst", strconv.FormatInt(burst, 10), "latency", "50ms")...); err != nil {
			return err
		}
	}
	return nil
}

// Cut drops everything between two groups of hosts, silently, as a switch does that fails. heal takes it away.
func (n *Network) Cut(ctx context.Context, one, other []string) (heal func() error, err error) {
	table := fmt.Sprintf("cut%d", n.cuts.Add(1)) // of its own: cuts may overlap in time
	for _, pair := range [][2][]string{{one, other}, {other, one}} {
		var far []string
		for _, name := range pair[1] {
			far = append(far, n.Host(name).Address)
		}
		set := strings.Join(far, ", ")
		for _, name := range pair[0] {
			rules := fmt.Sprintf("table inet %s {\n chain in { type filter hook input priority 0; ip saddr { %s } drop; }\n"+
				" chain out { type filter hook output priority 0; ip daddr { %s } drop; }\n}\n", table, set, set)
			if err := n.Host(name).nft(ctx, rules, "-f", "-"); err != nil {
				return nil, err
			}
		}
	}
	return func() (err error) {
		for _, name := range slices.Concat(one, other) {
			err = errors.Join(err, n.Host(name).nft(context.WithoutCancel(ctx), "", "delete", "table", "inet", table))
		}
		return err
	}, nil
}

// Unplug takes a host's interface down. plug puts it up again.
func (n *Network) Unplug(ctx context.Context, name string) (plug func() error, err error) {
	set := func(state string) error {
		return execute(context.WithoutCancel(ctx), "", "ip", "link", "set", n.Host(name).port(), state)
	}
	return func() error { return set("up") }, set("down")
}

// nft changes the host's rules.
func (h *Host) nft(ctx context.Context, rules string, arguments ...string) error {
	return execute(ctx, rules, "ip", slices.Concat([]string{"netns", "exec", h.namespace(), "nft"}, arguments)...)
}

func execute(ctx context.Context, input, program string, arguments ...string) error {
	command := exec.CommandContext(ctx, program, arguments...)
	command.Stdin = strings.NewReader(input)
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(arguments, " "), err, said)
	}
	return nil
}
