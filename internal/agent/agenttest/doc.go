// Package agenttest has the tests that each agent.Agent passes (Run), an agent in memory (Memory), and the programs of a fake worker
// and a fake tuning, which only pretend to compute.
package agenttest
