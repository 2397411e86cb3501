package main

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

var settings = map[string]setting{"one host": {faults, kinds}, "several": several(3), "modules": modules()}

// A failed trial can be repeated from its seed.
func TestDrawFollowsFromTheSeed(t *testing.T) {
	for name, from := range settings {
		for seed := range uint64(200) {
			if a, b := draw(seed, from, true), draw(seed, from, true); !reflect.DeepEqual(a, b) {
				t.Errorf("%s, seed %d: %v, and then %v", name, seed, &a, &b)
			}
		}
	}
}

// A campaign of 300 trials meets every fault several times, and CI's short one, of 20 on one host and 10 on several, each family.
func TestSeedsMeetEveryFault(t *testing.T) {
	short := map[string]uint64{"one host": 20, "several": 10, "modules": 7}
	for name, from := range settings {
		met, families := map[string]int{}, map[string]int{}
		for seed := range uint64(300) {
			p := draw(seed+1, from, true)
			for _, e := range p.events {
				met[e.fault.name]++
				if seed < short[name] {
					families[e.fault.family]++
				}
			}
		}
		for _, f := range from.faults {
			if met[f.name] < 5 || families[f.family] == 0 {
				t.Errorf("%s: 300 trials meet %s %d times, the first %d of them the family %s %d times", name, f.name, met[f.name], short[name], f.family, families[f.family])
			}
		}
	}
}

// What waits for an answer of a daemon is not applied while something keeps daemons from answering, which is ended only after that. What does not keep
// them from it stays.
func TestWhatAsksMeetsNothingMute(t *testing.T) {
	var did []string
	lasting := func(name string, mute bool) event {
		return event{next: true, fault: &fault{name: name, mute: mute, apply: func(context.Context, *host) (func() error, error) {
			did = append(did, name)
			return func() error {
				did = append(did, "end of "+name)
				return nil
			}, nil
		}}}
	}
	passing := func(name string, asks bool) event {
		return event{next: true, fault: &fault{name: name, asks: asks, apply: once(func(context.Context, *host) error {
			did = append(did, name)
			return nil
		})}}
	}
	w := &testbed{random: rand.New(rand.NewPCG(1, 1))}
	w.hosts = []*host{{testbed: w}}
	for _, e := range []event{lasting("loud", false), passing("asks", true), lasting("mute", true), passing("other", false), passing("asks", true)} {
		if err := w.apply(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"loud", "asks", "mute", "other", "end of mute", "end of loud", "asks"}
	if !slices.Equal(did, want) {
		t.Errorf("it did %q, want %q", did, want)
	}
}
