// Package data turns a job's files into samples: a deterministic stream that can be cut off anywhere and resumed.
//
// Open lists the files, keeps a share of them for evaluation, and holds what they say once, in memory. A sample of a language model is a window
// of Sequence+1 consecutive tokens: the inputs are its first Sequence, the targets its last. Windows start Sequence tokens
// apart, so every token is the target of exactly one sample (the first token, and a rest shorter than a window, are of
// none). An epoch visits the windows in an order drawn for it; see order.go.
//
// The caller of each pipeline keeps a Cursor and fills buffers of its own:
//
//	set, err := data.Open(ctx, data.Config{Files: files, Sequence: 128, Holdout: 0.05, Seed: 1})
//	cursor := data.Cursor{Pipeline: pipeline, Pipelines: pipelines, Batch: batch}
//	for step := range steps {
//		for m := range micros { // samples m*b .. m*b+b-1 of the batch
//			err = set.Fill(cursor, m*b, b, batch) // of buffers; nil for what is not wanted
//		}
//		cursor.Step++
//	}
//
// Both ends of a pipeline open the same files and read the same batch by the same cursor, the first stage its inputs and
// the last its targets; nothing but the cursor has to agree, and Identity tells whether the files do.
package data
