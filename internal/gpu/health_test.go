package gpu

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadingsMakeHealth(t *testing.T) {
	for name, c := range map[string]struct {
		r     Readings
		level Level
		codes []string
	}{
		"nothing is wrong":                       {Readings{}, Healthy, nil},
		"nothing is known":                       {Readings{Unread: "no library"}, Unknown, []string{"unread"}},
		"lost, and nothing else is known":        {Readings{Unread: "no library", Lost: Unlisted}, Sick, []string{"lost_unlisted", "unread"}},
		"idle and corrected errors":              {Readings{Throttled: []string{"idle", "power_cap"}, ECCCorrected: new(uint64(900)), Recovery: RecoverNone}, Healthy, nil},
		"rows were remapped":                     {Readings{Rows: &Rows{Corrected: 1, Uncorrected: 2}, ECCUncorrected: new(uint64(0))}, Healthy, nil},
		"fallen off the bus":                     {Readings{Lost: FellOff}, Sick, []string{"lost_fell_off"}},
		"needs a reset":                          {Readings{Lost: NeedsReset}, Sick, []string{"lost_needs_reset"}},
		"not listed":                             {Readings{Lost: Unlisted}, Sick, []string{"lost_unlisted"}},
		"uncorrected errors":                     {Readings{ECCUncorrected: new(uint64(1))}, Sick, []string{"ecc_uncorrected"}},
		"uncorrected errors, and rows":           {Readings{ECCUncorrected: new(uint64(1)), Rows: &Rows{Pending: true}}, Sick, []string{"ecc_uncorrected", "remap_pending"}},
		"a row could not be remapped":            {Readings{Rows: &Rows{Failed: true, Pending: true}}, Sick, []string{"remap_failed", "remap_pending"}},
		"a page is to be retired":                {Readings{RetirementPending: new(true), RetiredPages: new(3)}, Degraded, []string{"retirement_pending"}},
		"pages were retired":                     {Readings{RetirementPending: new(false), RetiredPages: new(3)}, Healthy, nil},
		"the driver asks for a reset":            {Readings{Recovery: RecoverReset}, Sick, []string{"recovery_reset"}},
		"the driver asks for a reboot":           {Readings{Recovery: RecoverReboot}, Sick, []string{"recovery_reboot"}},
		"the driver asks for a drain":            {Readings{Recovery: RecoverDrainAndReset}, Degraded, []string{"recovery_drain_and_reset"}},
		"the driver asks for a drain of peers":   {Readings{Recovery: RecoverDrainPeers}, Sick, []string{"recovery_drain_p2p"}},
		"the driver asks for a reset of the bus": {Readings{Recovery: RecoverBusReset}, Sick, []string{"recovery_bus_reset"}},
		"the driver asks for an IMEX domain":     {Readings{Recovery: RecoverIMEX}, Degraded, []string{"recovery_recover_imex_domain"}},
		"the driver asks for something new":      {Readings{Recovery: RecoverUnknown}, Sick, []string{"recovery_unknown"}},
		"hot":                                    {Readings{Throttled: []string{ThrottleThermal}}, Degraded, []string{"throttle_thermal"}},
		"power":                                  {Readings{Throttled: []string{ThrottlePowerBrake}}, Degraded, []string{"throttle_power_brake"}},
		"no compute":                             {Readings{ComputeProhibited: true}, Sick, []string{"compute_prohibited"}},
	} {
		tr := newTracker(GPU{}, Fault{})
		h := tr.assess(time.Unix(0, 0), c.r)
		if h.Level != c.level || !slices.Equal(codes(h), c.codes) {
			t.Errorf("%s: %s for %v, want %s for %v", name, h.Level, codes(h), c.level, c.codes)
		}
	}
}

// GPUs of the data centre contain errors of their memory, also where they are divided and tell nothing of rows; others remap rows without that.
func TestTheArchitectureSaysWhetherErrorsAreContained(t *testing.T) {
	for capability, want := range map[string]Level{
		"8.0": Degraded, "9.0": Degraded, "10.0": Degraded, // A100, H100, B200
		"8.6": Sick, "8.9": Sick, "12.0": Sick, "": Sick, // A10 and A40, L4 and L40S, RTX PRO 6000, not known
	} {
		for _, rows := range []*Rows{nil, {Uncorrected: 1}} {
			tr := newTracker(GPU{ComputeCapability: capability}, Fault{})
			if h := tr.assess(time.Unix(0, 0), Readings{ECCUncorrected: new(uint64(1)), Rows: rows}); h.Level != want || !slices.Equal(codes(h), []string{"ecc_uncorrected"}) {
				t.Errorf("capability %q with rows %v: %v, want %s", capability, rows, h, want)
			}
		}
	}
}

// Who reads a reason at night finds in docs/operations.md what to do.
func TestEveryReasonHasItsRemedy(t *testing.T) {
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	all := Readings{
		Unread:         "no library",
		ECCUncorrected: new(uint64(1)), Rows: &Rows{Failed: true, Pending: true}, RetirementPending: new(true), ComputeProhibited: true,
		Throttled: []string{ThrottleThermal, ThrottlePowerBrake, ThrottleHardware}, NVLinks: new(0),
	}
	tr := newTracker(GPU{}, Fault{})
	tr.links = 1
	for code := range xids {
		tr.note(XID{Code: code})
	}
	found := append(codes(tr.assess(time.Unix(0, 0), all)), "driver_silent")
	for _, l := range []Loss{FellOff, NeedsReset, Unlisted} {
		found = append(found, codes(tr.assess(time.Unix(0, 0), Readings{Lost: l}))...)
	}
	for _, r := range []Recovery{RecoverReset, RecoverReboot, RecoverDrainPeers, RecoverDrainAndReset, RecoverIMEX, RecoverBusReset, RecoverUnknown} {
		found = append(found, codes(tr.assess(time.Unix(0, 0), Readings{Recovery: r}))...)
	}
	for _, code := range found {
		if !strings.Contains(string(text), "`"+code+"`") {
			t.Errorf("docs/operations.md does not say what to do about %s", code)
		}
	}
	if len(found) < len(xids)+20 {
		t.Errorf("only %d reasons were tried", len(found))
	}
}

func codes(h Health) (all []string) {
	for _, r := range h.Reasons {
		all = append(all, r.Code)
	}
	return all
}

func TestXIDsMakeHealth(t *testing.T) {
	for code, want := range map[uint64]Level{
		13: Healthy, 31: Healthy, 43: Healthy, 45: Healthy, 61: Healthy, 63: Healthy, 147: Healthy, 148: Healthy, 157: Healthy, 9999: Healthy,
		54: Degraded, 74: Degraded, 92: Degraded, 94: Degraded, 144: Degraded, 145: Degraded, 146: Degraded, 149: Degraded, 150: Degraded,
		46: Sick, 48: Sick, 62: Sick, 64: Sick, 79: Sick, 95: Sick, 109: Sick, 110: Sick, 119: Sick, 120: Sick, 136: Sick, 140: Sick, 143: Sick,
		151: Sick, 155: Sick, 156: Sick, 158: Sick,
	} {
		tr := newTracker(GPU{}, Fault{})
		tr.note(XID{Code: code})
		tr.note(XID{Code: code})
		if h := tr.assess(time.Unix(0, 0), Readings{}); h.Level != want {
			t.Errorf("XID %d: %v, want %s", code, h, want)
		}
		// No reading takes it back, and no time.
		if h := tr.assess(time.Unix(1e9, 0), Readings{Recovery: RecoverNone}); h.Level != want {
			t.Errorf("XID %d is forgotten: %v, want %s", code, h, want)
		}
		if all := tr.xids(); len(all) != 1 || all[0].Count != 2 || all[0].Unhurt() != (want == Healthy) {
			t.Errorf("XID %d: seen are %+v", code, all)
		}
	}
}

func TestReasonsEndWithTheirCauses(t *testing.T) {
	tr := newTracker(GPU{}, Fault{})
	at := time.Unix(0, 0)
	broken := Readings{Rows: &Rows{Pending: true}, ECCUncorrected: new(uint64(2)), Recovery: RecoverReset, Throttled: []string{ThrottleThermal}, NVLinks: new(12)}
	if h := tr.assess(at, broken); h.Level != Sick {
		t.Fatalf("%v", h)
	}
	after := Readings{Rows: &Rows{Uncorrected: 1}, ECCUncorrected: new(uint64(0)), Recovery: RecoverNone, NVLinks: new(12)}
	if h := tr.assess(at.Add(hotFor/2), after); !slices.Equal(codes(h), []string{"throttle_thermal"}) {
		t.Errorf("after the reset %v; it was hot half a minute ago", codes(h))
	}
	if h := tr.assess(at.Add(hotFor), after); h.Level != Healthy {
		t.Errorf("a minute later %v", h)
	}
	after.NVLinks = new(11)
	if h := tr.assess(at.Add(2*hotFor), after); !slices.Equal(codes(h), []string{"nvlink_down"}) || h.Reasons[0].Text != "11 of 12 NVLinks are active" {
		t.Errorf("a link less: %v", h)
	}
}
