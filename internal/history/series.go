package history

import "slices"

// Live returns the records that hold, in the order of the file. A Start at step s, from round r, supersedes the steps from s on and
// the evaluations and commits of rounds after r: their worker died before it committed them, and they are trained again. A
// record of merged steps that reaches beyond s keeps its values and ends before s. A round that is evaluated or
// committed twice, as the one that a worker starts from may be, has its last evaluation and commit. A worker's first step has no rate: what its
// pipelines did took an unknown time, and older files hold one that is far too high.
func Live(records []Record) []Record {
	var live []Record
	var began uint64 // the step that the newest worker begins with
	for _, r := range records {
		switch r.Kind {
		case Start:
			began = r.First
			live = slices.DeleteFunc(live, func(old Record) bool { return superseded(&old, &r) })
			for i := range live {
				if live[i].Kind == Step && live[i].Last >= r.First {
					live[i].Last = r.First - 1
				}
			}
		case Evaluation, Commit:
			live = forget(live, &r)
		case Step:
			if r.First == began {
				r.Values[TokensPerS] = Unknown
			}
		}
		live = append(live, r)
	}
	return live
}

// forget drops the earlier record of the round that r is about. Rounds ascend between two starts.
func forget(live []Record, r *Record) []Record {
	for i, old := range slices.Backward(live) {
		if old.Kind != r.Kind || old.Round > r.Round {
			continue
		}
		if old.Round == r.Round && old.Count == 1 {
			return slices.Delete(live, i, i+1)
		}
		break
	}
	return live
}

// superseded reports whether a start undoes an older record.
func superseded(old, start *Record) bool {
	switch old.Kind {
	case Step:
		return old.First >= start.First
	case Evaluation, Commit:
		return old.Round > start.Round
	case Start:
	}
	return false // what has started has started
}

// Thin merges live records until there are at most limit: the newest half of the limit stays as it is, what is older is merged
// evenly.
func Thin(live []Record, limit int) []Record {
	if len(live) <= limit {
		return live
	}
	recent := len(live) - limit/2
	return append(Even(live[:recent], limit-limit/2), live[recent:]...)
}

// Even merges records into at most n, n >= 4: those of one kind whose steps begin in the same bucket, where buckets are a power of
// two steps wide, the same for all, and as narrow as that allows.
func Even(records []Record, n int) []Record {
	out := records
	for width := uint64(2); len(out) > n && width != 0; width *= 2 {
		out = merge(records, width)
	}
	return out
}

// merge merges the records of each kind in each bucket of a width.
func merge(records []Record, width uint64) []Record {
	var out []Record
	last := [kindsEnd]int{} // 1 + the index in out of the kind's newest
	for _, r := range records {
		if at := last[r.Kind]; at > 0 && out[at-1].First/width == r.First/width {
			out[at-1] = join(&out[at-1], &r)
			continue
		}
		out = append(out, r)
		last[r.Kind] = len(out)
	}
	return out
}

// join is what two records of a kind say together: means weigh as many records as they stand for.
func join(a, b *Record) Record {
	out := Record{
		Kind: a.Kind, First: min(a.First, b.First), Last: max(a.Last, b.Last),
		Round: b.Round, Generation: b.Generation, Count: a.Count + b.Count, Time: b.Time,
	}
	for m := range out.Values {
		x, y := a.Values[m], b.Values[m]
		switch {
		case !x.Known():
			out.Values[m] = y
		case !y.Known():
			out.Values[m] = x
		default:
			share := float64(b.Count) / float64(a.Count+b.Count)
			out.Values[m] = Stat{x.Mean + share*(y.Mean-x.Mean), min(x.Min, y.Min), max(x.Max, y.Max)}
		}
	}
	return out
}
