package main

import (
	"reflect"
	"testing"
)

// A failed trial can be repeated from its seed.
func TestDrawFollowsFromTheSeed(t *testing.T) {
	for seed := range uint64(200) {
		if a, b := draw(seed, faults, true), draw(seed, faults, true); !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d: %v, and then %v", seed, &a, &b)
		}
	}
}

// A campaign of 300 trials meets every fault several times, and one of 20 each family.
func TestSeedsMeetEveryFault(t *testing.T) {
	met, families := map[string]int{}, map[string]int{}
	for seed := range uint64(300) {
		p := draw(seed+1, faults, true)
		for _, e := range p.events {
			met[e.fault.name]++
			if seed < 20 {
				families[e.fault.family]++
			}
		}
	}
	for _, f := range faults {
		if met[f.name] < 5 || families[f.family] == 0 {
			t.Errorf("300 trials meet %s %d times, the first 20 of them the family %s %d times", f.name, met[f.name], f.family, families[f.family])
		}
	}
}
