package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
)

func TestStatusShowsLinksThatWereWaitedFor(t *testing.T) {
	took := 0.0123
	s := api.JobStatus{State: api.Running, StageStatus: []api.StageStatus{{}, {}, {}}, LinkStatus: []api.LinkStatus{
		{Link: 0, MessageBytes: 65536, DownS: &took}, {Link: 1, MessageBytes: 65536},
	}}
	var out bytes.Buffer
	if err := (&call{out: &out, format: formatText}).show(nil, func(p *page) { printStatus(p, s) }); err != nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "0-1   65.5 KB  12.3ms  -") || strings.Contains(text, "1-2") {
		t.Errorf("links are shown as\n%s", text)
	}
}
