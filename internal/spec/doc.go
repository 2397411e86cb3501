// Package spec is the admitted job: how a job file becomes one (Inspector, Inspect), and how its automatic values become values.
package spec
