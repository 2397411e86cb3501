package gpu

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// xids are the errors that say something about the processor, by NVIDIA's catalog for A100 and later: Sick are those for which it asks at once to reset
// the GPU or to restart the machine. Of those of NVLink 5 (144 to 150) that depends on a detail that the driver tells only the kernel's log: they are
// Degraded, and where the driver asks for a reset, asked says so. All others are the application's, pass by themselves or are to be ignored: 13, 31, 43
// and 45 among them end the process that caused them, and the processor goes on. What is here lasts until the processor was reset (Fault).
var xids = map[uint64]struct {
	level Level
	text  string
}{
	46:  {Sick, "it stopped processing"},
	48:  {Sick, "an error in its memory that could not be corrected (double-bit ECC)"},
	54:  {Degraded, "its power cable is not connected: it runs slower"},
	62:  {Sick, "its power management unit halted"},
	64:  {Sick, "a bad row or page of its memory could not be marked"},
	74:  {Degraded, "an error of an NVLink"},
	79:  {Sick, "it has fallen off the bus"},
	92:  {Degraded, "many errors in its memory that were corrected"},
	94:  {Degraded, "an error in its memory that could not be corrected, but was contained: it cost one process"},
	95:  {Sick, "an error in its memory that could not be corrected, and was not contained"},
	109: {Sick, "it did not switch from one context to the next"},
	110: {Sick, "a security fault; power off the host: a reboot ends this reason and not the fault"},
	119: {Sick, "its system processor (GSP) did not answer"},
	120: {Sick, "an error of its system processor (GSP)"},
	136: {Sick, "the training of an NVLink failed"},
	140: {Sick, "an error in its memory that the driver did not recover from"},
	143: {Sick, "it could not be initialised"},
	144: {Degraded, "an error of an NVLink (SAW)"},
	145: {Degraded, "an error of an NVLink (RLW)"},
	146: {Degraded, "an error of an NVLink (TLW)"},
	149: {Degraded, "an error of an NVLink (NETIR)"},
	150: {Degraded, "an error of an NVLink (MSE)"},
	151: {Sick, "an error when its encryption changed keys"},
	155: {Sick, "the driver took an NVLink down"},
	156: {Sick, "a part of it was marked as bad and is replaced at the next reset"},
	158: {Sick, "a timeout that it does not recover from"},
}

// Unhurt reports whether an error leaves the processor as it was.
func (x XID) Unhurt() bool { _, hurts := xids[x.Code]; return !hurts }

// hotFor is how long a processor counts as throttled after it last was: it throttles and recovers many times a minute.
const hotFor = time.Minute

// tracker is what is known of one processor beyond its last readings. It reads no clock.
type tracker struct {
	contains bool // it contains errors of its memory (containing)
	seen     map[uint64]XID
	asked    bool                 // the driver has asked for a reset
	links    int                  // the most NVLinks that were active
	throttle map[string]time.Time // when the clocks were last low for a reason
}

// newTracker begins with what is known of a processor.
func newTracker(g GPU, f Fault) tracker {
	t := tracker{contains: slices.Contains(containing, g.ComputeCapability), seen: map[uint64]XID{}, throttle: map[string]time.Time{}, asked: f.Asked}
	for _, x := range f.XIDs {
		t.seen[x.Code] = x
	}
	return t
}

// note takes an error down.
func (t *tracker) note(x XID) {
	x.Count = t.seen[x.Code].Count + 1
	t.seen[x.Code] = x
}

// xids are those that were seen, in the order of codes.
func (t *tracker) xids() []XID {
	all := make([]XID, 0, len(t.seen))
	for _, code := range slices.Sorted(maps.Keys(t.seen)) {
		all = append(all, t.seen[code])
	}
	return all
}

// assess says how the processor is. Each reason lasts as long as its cause: a reading until it has changed, an XID until the processor was reset.
func (t *tracker) assess(now time.Time, r Readings) Health {
	reasons := slices.Concat(unread(r), lost(r), t.ofXIDs(), t.ofMemory(r), asked(r), t.slow(now, r), t.linked(r))
	if r.ComputeProhibited {
		reasons = append(reasons, Reason{"compute_prohibited", Sick, "its compute mode lets no process compute on it"})
	}
	return healthOf(reasons)
}

func unread(r Readings) []Reason {
	if r.Unread == "" {
		return nil
	}
	return []Reason{{"unread", Unknown, "nothing is known of its health: " + r.Unread}}
}

func lost(r Readings) []Reason {
	text := map[Loss]string{
		FellOff: "the driver has lost it: it has fallen off the bus", NeedsReset: "it answers nothing until it is reset", Unlisted: "the driver lists it no more",
	}[r.Lost]
	if text == "" {
		return nil
	}
	return []Reason{{"lost_" + string(r.Lost), Sick, text}}
}

func (t *tracker) ofXIDs() (all []Reason) {
	for _, x := range t.xids() {
		if rule, hurts := xids[x.Code]; hurts {
			text := fmt.Sprintf("XID %d: %s; last at %s", x.Code, rule.text, x.At.UTC().Format(time.DateTime))
			all = append(all, Reason{fmt.Sprintf("xid_%d", x.Code), rule.level, text})
		}
	}
	return all
}

// containing are the compute capabilities of the processors that contain errors: GA100, GH100 and GB10x, by NVIDIA's guide to GPU memory errors
// ("Supported GPUs"). Others remap rows too, and contain nothing.
var containing = []string{"8.0", "9.0", "10.0"}

// ofMemory judges the errors of its memory. A processor that contains them ends the process that met one, and an XID (95) says when it could not.
func (t *tracker) ofMemory(r Readings) (all []Reason) {
	if n := r.ECCUncorrected; n != nil && *n > 0 {
		level := Sick
		if t.contains {
			level = Degraded
		}
		all = append(all, Reason{"ecc_uncorrected", level, fmt.Sprintf("%d errors in its memory could not be corrected since the last reset", *n)})
	}
	if r.Rows != nil && r.Rows.Failed {
		all = append(all, Reason{"remap_failed", Sick, "a bad row of its memory could not be remapped"})
	}
	if r.Rows != nil && r.Rows.Pending {
		all = append(all, Reason{"remap_pending", Degraded, "a bad row of its memory is remapped at the next reset"})
	}
	if r.RetirementPending != nil && *r.RetirementPending {
		all = append(all, Reason{"retirement_pending", Degraded, "a bad page of its memory is retired at the next reset"})
	}
	return all
}

// asked is what the driver asks for.
func asked(r Readings) []Reason {
	level, text := Sick, ""
	switch r.Recovery {
	case RecoverReset:
		text = "the driver asks for a reset"
	case RecoverReboot:
		text = "the driver asks for a reboot of the host"
	case RecoverBusReset:
		text = "the driver asks for a reset of its PCIe bus"
	case RecoverUnknown:
		text = "the driver asks for what this program does not know"
	case RecoverDrainPeers:
		text = "the driver asks to end all processes that exchange data between GPUs and UVM persistence mode; then it says what is next"
	case RecoverIMEX:
		level, text = Degraded, "the driver asks to recover the IMEX domain of its NVLinks"
	case RecoverDrainAndReset:
		level, text = Degraded, "the driver asks for a reset once nothing runs on it"
	case RecoverNone, "":
		return nil
	}
	return []Reason{{"recovery_" + string(r.Recovery), level, text}}
}

// slow judges low clocks.
func (t *tracker) slow(now time.Time, r Readings) (all []Reason) {
	for _, why := range r.Throttled {
		t.throttle[why] = now
	}
	for _, rule := range []struct{ why, text string }{
		{ThrottleThermal, "it is too hot and runs slower"},
		{ThrottlePowerBrake, "its power supply makes it run slower"},
		{ThrottleHardware, "heat or its power supply makes it run slower"},
	} {
		if last, ever := t.throttle[rule.why]; ever && now.Sub(last) < hotFor {
			all = append(all, Reason{"throttle_" + rule.why, Degraded, rule.text})
		}
	}
	return all
}

// linked judges the NVLinks.
func (t *tracker) linked(r Readings) []Reason {
	if r.NVLinks == nil {
		return nil
	}
	t.links = max(t.links, *r.NVLinks)
	if *r.NVLinks == t.links {
		return nil
	}
	return []Reason{{"nvlink_down", Degraded, fmt.Sprintf("%d of %d NVLinks are active", *r.NVLinks, t.links)}}
}
