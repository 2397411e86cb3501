// Package admission turns a job file into a spec.Spec, or says all that is wrong with it. The daemon opens nothing that a user names:
// an Inspector has each file admitted in a process of its own, which is Inspect.
package admission
