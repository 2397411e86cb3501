// Package nodetest has what tests of the daemon need: a worker that speaks the control protocol and writes real shards but
// trains nothing, a tuning that measures nothing, and daemons to run beside the test or as a process of their own. A test
// binary that uses it becomes any of these programs when it is started so:
//
//	func TestMain(m *testing.M) { nodetest.Main(m) }
package nodetest
