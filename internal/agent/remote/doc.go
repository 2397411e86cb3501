// Package remote reaches the agent of another node: a client that is an agent.Agent, and the handler that asks the agent there.
//
// They speak HTTP with JSON (docs/design.md, "What agents say to each other"). Every answer is a stream of lines, and a line comes at least
// every second for as long as the agent works, so that a question may take as long as it does and a node that has stopped to answer is
// told within seconds.
package remote
