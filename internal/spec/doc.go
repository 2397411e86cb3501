// Package spec is the admitted job. Resolve turns the automatic values of a job into values, in the only place that does; a Spec is what
// the replicated state, workers and tunings are given of it.
//
//	found, problems := spec.Resolve(j, facts, nil)             // of a job file; it stays open where a tuning is to choose
//	s, err := spec.New(found, m, user, retune)
//	tuned, err := s.Tuned(report, cores)                       // calls Resolve with the report
//	plan, why, err := tuned.Plan()
package spec
