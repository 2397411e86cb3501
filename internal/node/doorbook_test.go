package node

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/audit"
)

// TestWhoKnocksAgainIsWrittenDownOnceAMinute, and others as before.
func TestWhoKnocksAgainIsWrittenDownOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []audit.Record
		d := &doorbook{write: func(r audit.Record) { lines = append(lines, r) }}
		from := func(host string, port int) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: port} }
		why := errors.New("another version")
		for i := range 130 { // of two minutes
			d.refused(from("192.0.2.1", 1000+i), why)
			time.Sleep(time.Second)
		}
		d.refused(from("192.0.2.2", 5), why)
		d.refused(from("192.0.2.1", 6), errors.New("no certificate"))
		if len(lines) != 5 || !strings.HasSuffix(lines[1].Error, "another version; 59 times more since the last line") {
			t.Fatalf("%+v", lines)
		}
		d.link("7", "192.0.2.3:9", "of generation 1, this link of 2")
		if last := lines[len(lines)-1]; last.Operation != "link" || last.Object != "/v1/jobs/7" || last.From != "192.0.2.3:9" || !strings.Contains(last.Error, "generation 1") {
			t.Fatalf("%+v", last)
		}
		for i := range 2 * mostKnocks {
			d.refused(from("192.0.2.1", 7), fmt.Errorf("reason %d", i))
		}
		if len(d.seen) > mostKnocks || len(lines) != 6+2*mostKnocks {
			t.Errorf("%d are remembered, %d lines", len(d.seen), len(lines))
		}
	})
}
