package envtest

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestFreeAddressesAreGivenToNoConnection(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		Missing(t, "which ports connections are given: %v", err)
	}
	first, err := strconv.Atoi(strings.Fields(string(text))[0])
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.Atoi(port); err != nil || n < firstPort || n >= first {
		t.Errorf("port %s; expected one from %d on and below %d, from which connections are given theirs", port, firstPort, first)
	}
}

func TestAnAddressIsFreeByBothProtocols(t *testing.T) {
	for _, network := range []string{"tcp", "udp"} {
		address := FreeAddress(t)
		if network == "tcp" {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		} else {
			l, err := (&net.ListenConfig{}).ListenPacket(t.Context(), network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
		}
		if free(t, address) == nil {
			t.Errorf("%s is called free while somebody listens by %s", address, network)
		}
	}
}

func TestAnAddressIsGivenToOneTestAtATime(t *testing.T) {
	var port string
	t.Run("has it", func(t *testing.T) {
		var err error
		if _, port, err = net.SplitHostPort(FreeAddress(t)); err != nil {
			t.Fatal(err)
		}
		if reserve(t, port) == nil {
			t.Errorf("port %s is given twice", port)
		}
	})
	if err := reserve(t, port); err != nil {
		t.Errorf("port %s after the test that had it: %v", port, err)
	}
}
