// Package raftlog replicates the commands of package cluster through Raft (hashicorp/raft): its log, its snapshots and the state
// machine that it drives. Opening one proves its files first: what is damaged or missing is an error that names the file, never an
// empty state.
package raftlog
