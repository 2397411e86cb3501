// Package modeldir writes an exported model into a directory and replaces an earlier export there, and nothing else. Each
// export leaves a manifest (docs/formats.md) that says which files it wrote; only these are ever replaced, and only while
// they are as they were written.
//
//	err := modeldir.Check(dir, force) // before a long wait: would Write refuse?
//	err = modeldir.Write(dir, force, modeldir.Source{Job: "7", Name: "my-job"}, func(staging string) error {
//		return fetch(staging) // plain files
//	})
//
// A reader never finds files of two exports under config.json: it is removed before the first file is replaced, and comes
// back after the last one. An export that was interrupted in between is told by its manifest (Interrupted), and the next
// one with force finishes it.
package modeldir
