// Package list has flags of several values for the programs under bench/.
package list

import (
	"flag"
	"strings"
)

// Flag defines a flag of values that commas separate. Its default must parse.
func Flag[T any](to *[]T, name, initial, usage string, parse func(string) (T, error)) {
	set := setter(to, parse)
	if err := set(initial); err != nil {
		panic(err)
	}
	flag.Func(name, usage+" (default "+initial+")", set)
}

// Change defines a flag of values that commas separate. Without it the list is as it was.
func Change[T any](to *[]T, name, usage string, parse func(string) (T, error)) {
	flag.Func(name, usage, setter(to, parse))
}

// setter sets a list to the values of a text.
func setter[T any](to *[]T, parse func(string) (T, error)) func(text string) error {
	return func(text string) error {
		*to = nil
		for part := range strings.SplitSeq(text, ",") {
			v, err := parse(part)
			if err != nil {
				return err
			}
			*to = append(*to, v)
		}
		return nil
	}
}
