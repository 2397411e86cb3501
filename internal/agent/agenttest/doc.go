// Package agenttest has the programs of a fake worker and a fake tuning, which only pretend to compute, and processes that run them as
// goroutines (Processes).
package agenttest
