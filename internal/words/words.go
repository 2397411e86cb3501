// Package words writes numbers for people: in messages, tables and progress.
package words

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
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

// Percent is a part of a whole to two digits, or to the percent: 0.25%, 3.1%, 190%.
func Percent(part float64) string {
	percent := 100 * part
	if math.Abs(percent) >= 99.5 {
		return fmt.Sprintf("%.0f%%", percent)
	}
	return fmt.Sprintf("%.2g%%", percent)
}

// Number is a large number to four digits, in thousands (K), millions (M), billions (B) or trillions (T): 241.6 B.
func Number(n float64) string {
	n, unit := scaled(n, 999.95, "KMBT")
	return strings.TrimSpace(fmt.Sprintf("%.4g %s", n, unit))
}

// Bytes is an amount of memory or data to three digits, in the largest unit of 1000 that it fills: 12.5 KB.
func Bytes(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := scaled(float64(n), 999.5, "KMGTPE")
	return fmt.Sprintf("%.3g %sB", value, unit)
}

// scaled is a number in the first unit in which it is below a limit, or in the last.
func scaled(n, limit float64, units string) (float64, string) {
	unit := ""
	for ; n >= limit && units != ""; units = units[1:] {
		n, unit = n/1000, units[:1]
	}
	return n, unit
}

// Clip is the first line of a text, shortened to a width.
func Clip(text string, width int) string {
	text, _, _ = strings.Cut(text, "\n")
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
