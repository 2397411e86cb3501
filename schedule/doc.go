// Package schedule holds the order of micro-batch work as a value. A generator makes a Plan; Check proves it; Simulate
// times it; DrawText and DrawSVG show it; package pipeline executes it. All of them consume the same Plan, which prints and
// parses in one grammar, one line a stage:
//
//	F0 F1 F2 B0 F3 B1 B2 B3
//	F0 B0 F1 B1 F2 B2 F3 B3
//
// The caller's loop:
//
//	plan, reason, err := schedule.Generate("afp", schedule.Request{Devices: 4, MicroBatches: 8, Costs: &measured})
//	err = schedule.Check(plan, 8)
//	depths := schedule.InFlightByStage(plan)           // link queues this deep never make a sender wait
//	result, err := schedule.Simulate(plan, measured)   // batch time, bubble, when each op runs
//	fmt.Print(reason, "\n", schedule.DrawText(result, 0))
//
// The package is a leaf: no I/O, no clock, no goroutine.
package schedule
