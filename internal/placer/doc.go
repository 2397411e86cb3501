// Package placer decides where jobs run, and in which order. It is pure: values in, a choice and its reason out.
//
// Place puts the stages of one job on nodes. A job is what its stages take and cost; a node is what it has free. A Queue
// orders the jobs that wait, and says which of them may start now and what the others wait for:
//
//	for _, v := range placer.Order(now, nodes, holders, waiting) {
//		if v.Start {
//			... begin v.Job
//		}
//		... v.Reason is for its user
//	}
package placer
