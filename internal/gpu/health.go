package gpu

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// xids are the errors that say something about the processor, by NVIDIA's catalog: Sick are those for which it asks to reset the GPU or to restart the
// host. All others are the application's or pass by themselves: 13, 31, 43 and 45 among them end the process that caused them, and the processor goes
// on. What is here lasts until the processor was reset (Fault).
var xids = map[uint64]struct {
	level Level
	text  string
}{
	46:  {Sick, "it stopped processing"},
	48:  {Sick, "an error in its memory that could not be corrected (double-bit ECC)"},
	61:  {Sick, "its power management unit stopped"},
	62:  {Sick, "its power management unit halted"},
	63:  {Degraded, "a row or page of its memory was marked as bad and is replaced at the next reset"},
	64:  {Sick, "a bad row or page of its memory could not be marked"},
	74:  {Degraded, "an error of an NVLink"},
	79:  {Sick, "it has fallen off the bus"},
	92:  {Degraded, "many errors in its memory that were corrected"},
	94:  {Degraded, "an error in its memory that could not be corrected, but was contained: it cost one process"},
	95:  {Sick, "an error in its memory that could not be corrected, and was not contained"},
	109: {Sick, "it did not switch from one context to the next"},
	110: {Sick, "a security fault"},
	119: {Sick, "its system processor (GSP) did not answer"},
	120: {Sick, "an error of its system processor (GSP)"},
	136: {Degraded, "the training of an NVLink failed"},
	140: {Sick, "an error in its memory that the driver did not recover from"},
	143: {Sick, "it could not be initialised"},
	156: {Degraded, "a part of it was marked as bad and is replaced at the next reset"},
	157: {Degraded, "a bad part of it could not be replaced"},
	158: {Sick, "a timeout that it does not recover from"},
}

// Unhurt reports whether an error leaves the processor as it was.
func (x XID) Unhurt() bool { _, hurts := xids[x.Code]; return !hurts }

// hotFor is how long a processor counts as throttled after it last was: it throttles and recovers many times a minute.
const hotFor = time.Minute

// tracker is what is known of one processor beyond its last readings. It reads no clock.
type tracker struct {
	seen     map[uint64]XID
	asked    bool                 // the driver has asked for a reset
	links    int                  // the most NVLinks that were active
	throttle map[string]time.Time // when the clocks were last low for a reason
}

// newTracker begins with what is known of a processor.
func newTracker(f Fault) tracker {
	t := tracker{seen: map[uint64]XID{}, throttle: map[string]time.Time{}, asked: f.Asked}
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
	reasons := slices.Concat(lost(r), t.ofXIDs(), ofMemory(r), asked(r), t.slow(now, r), t.linked(r))
	if r.ComputeProhibited {
		reasons = append(reasons, Reason{"compute_prohibited", Sick, "its compute mode lets no process compute on it"})
	}
	return healthOf(reasons)
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

// ofMemory judges the errors of its memory. A processor that remaps rows contains errors, and an XID says when it could not; one that retires pages
// does not.
func ofMemory(r Readings) (all []Reason) {
	if n := r.ECCUncorrected; n != nil && *n > 0 {
		level := Sick
		if r.Rows != nil {
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
		level, text = Degraded, "the driver asks to end what exchanges data between processors"
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
