// Package stagetest holds the conformance suites of what a stage is made of. Device tests a device against package ref;
// every device of this project runs it, and so should any other (docs/add-a-device.md).
package stagetest
