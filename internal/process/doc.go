// Package process starts, finds, waits for and kills processes of this host, children or not.
//
// A process is named by its number and its start time (ID): a number may be used again, the pair is not.
package process
