package api

import (
	"cmp"
	"slices"
)

// Timeout is the bound of something that the daemon waits for.
type Timeout struct {
	Name   string  `json:"name"`
	ValueS float64 `json:"value_s"`
	// Measured says that the value follows from what was measured of the job or its nodes, as of now; else it is configured or fixed.
	Measured bool   `json:"measured"`
	From     string `json:"from"` // what it is derived from, for people
	Then     string `json:"then"` // what happens once it is over, for people
}

// SortTimeouts puts bounds in the order in which they pass, the shortest first.
func SortTimeouts(all []Timeout) {
	slices.SortStableFunc(all, func(a, b Timeout) int { return cmp.Or(cmp.Compare(a.ValueS, b.ValueS), cmp.Compare(a.Name, b.Name)) })
}
