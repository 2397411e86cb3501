// Package nearest finds, for an unknown word, the known word that is spelled most like it.
package nearest

import "strings"

// Word returns the word with the smallest edit distance to got, of equally near ones one that begins with the same letter; "" when all
// are more than one edit for every three letters of got away, and more than one edit.
func Word(got string, words []string) string {
	best, bound := "", max(1, len(got)/3)+1
	for _, w := range words {
		d := distance(strings.ToLower(got), strings.ToLower(w), bound+1)
		if d < bound || d == bound && best != "" && begins(w, got) && !begins(best, got) {
			best, bound = w, d
		}
	}
	return best
}

// Beginning returns the only word that begins with got, or that got begins with; "" without one.
func Beginning(got string, words []string) (best string) {
	for _, w := range words {
		if min(len(w), len(got)) < leastStem || !strings.HasPrefix(w, got) && !strings.HasPrefix(got, w) {
			continue
		}
		if best != "" {
			return ""
		}
		best = w
	}
	return best
}

// leastStem is how many letters two words share at least of which one begins with the other.
const leastStem = 4

// begins reports whether two words begin with the same byte.
func begins(a, b string) bool { return a != "" && b != "" && a[0] == b[0] }

// distance is the number of insertions, deletions, substitutions and swaps of neighbours that turn a into b, or bound
// when it is not below bound (Damerau 1964, in the restricted form that edits no place twice). The bound keeps a hostile
// key of many kilobytes cheap.
func distance(a, b string, bound int) int {
	if max(len(a)-len(b), len(b)-len(a)) >= bound {
		return bound
	}
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row, next = row, next, before
	}
	return min(row[len(b)], bound)
}
