// Package words writes numbers for people: in messages, tables and progress.
package words

import (
	"fmt"
	"strings"
	"time"
)

// Count is a number and its noun: 1 stage, 2 stages, 3 micro-batches.
func Count(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "ch"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// Seconds is a time to three digits, in the unit that suits it: 22.1ms; a long one to the second: 3m20s. What rounding leaves of
// nothing is 0.
func Seconds(seconds float64) string {
	const third = 0.9995 // of a unit: from here on three digits would be four
	switch {
	case seconds < 1e-9:
		return "0"
	case seconds < third*1e-3:
		return fmt.Sprintf("%.3gus", seconds*1e6)
	case seconds < third:
		return fmt.Sprintf("%.3gms", seconds*1e3)
	case seconds < 100:
		return fmt.Sprintf("%.3gs", seconds)
	}
	return time.Duration(seconds * float64(time.Second)).Round(time.Second).String()
}

// Number is a large number to four digits, in thousands (K), millions (M), billions (B) or trillions (T): 241.6 B.
func Number(n float64) string {
	const units = "KMBT"
	at := -1
	for n >= 999.95 && at < len(units)-1 {
		n, at = n/1000, at+1
	}
	if at < 0 {
		return fmt.Sprintf("%.4g", n)
	}
	return fmt.Sprintf("%.4g %c", n, units[at])
}

// Bytes is an amount of memory or data to three digits, in the largest unit of 1000 that it fills: 12.5 KB.
func Bytes(n int64) string {
	const units = "KMGTPE"
	value, at := float64(n), -1
	for value >= 999.5 && at < len(units)-1 {
		value, at = value/1000, at+1
	}
	if at < 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.3g %cB", value, units[at])
}
