package foreign

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// ProgramError is an error of the user's program, or a refusal of what it gave.
type ProgramError struct {
	Type      string   `json:"type"` // of the exception; "" of a refusal
	Message   string   `json:"message"`
	File      string   `json:"file"` // of the user's line that it came from; "" where none had a part in it
	Line      int      `json:"line"`
	Traceback []string `json:"traceback"`
	// Lost says that the device has failed, and not the program: the process computes nothing more. A DeviceError has it.
	Lost bool `json:"lost"`
}

func (e *ProgramError) Error() string {
	var words []string
	if e.File != "" {
		words = append(words, e.File+":"+strconv.Itoa(e.Line))
	}
	if e.Type != "" {
		words = append(words, e.Type)
	}
	return printable(strings.Join(append(words, e.Message), ": "))
}

// DeviceError says that the GPU of the interpreter has failed. It was ended: another one may have no such failure, or another GPU.
type DeviceError struct {
	Request string // what it was asked for
	Said    string // the framework's error, and where in the user's program
}

func (e *DeviceError) Error() string {
	return printable(fmt.Sprintf("the interpreter's GPU failed while it was asked for %s: %s; the kernel's log and `avgpipectl nodes` say whether the GPU is sick", e.Request, e.Said))
}

// ProtocolError says that the interpreter's answer is none of the protocol. It was ended.
type ProtocolError struct {
	Request string // what it was asked for
	Err     error
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("the interpreter's answer to %s breaks the protocol: %v", e.Request, e.Err)
}

func (e *ProtocolError) Unwrap() error { return e.Err }

// printable is text without what would change the terminal that shows it.
func printable(text string) string {
	var out strings.Builder
	for _, r := range text {
		switch {
		case r == '\n' || r == '\t':
			out.WriteByte(' ')
		case unicode.IsPrint(r):
			out.WriteRune(r)
		default:
			fmt.Fprintf(&out, "\\u%04x", r)
		}
	}
	return out.String()
}

// EndedError says that the interpreter ended when it was not to.
type EndedError struct {
	Request string // what it was asked for
	How     string // "exit status 1", "signal: killed"
	Said    string // the last that it wrote to its standard error; "" if nothing
}

func (e *EndedError) Error() string {
	text := fmt.Sprintf("the interpreter ended while it was asked for %s: %s", e.Request, e.How)
	if e.Said != "" {
		text += "; it wrote last: " + e.Said
	}
	return text
}

// HangError says that the interpreter did not answer.
type HangError struct {
	Request string
	Bound   string // how long it had
	Stopped bool   // a signal had stopped its process
	Logged  bool   // Log was told where its threads stood
	File    string // the user's line that it stood at; "" where that is not known
	Line    int
}

func (e *HangError) Error() string {
	text := fmt.Sprintf("the interpreter did not answer %s within %s", e.Request, e.Bound)
	if e.Stopped {
		text += ", while a signal (SIGSTOP) had stopped it"
	}
	text += "; it was ended"
	if e.Logged {
		text += ", and where its threads stood is in the log"
	}
	if e.File != "" {
		text = e.File + ":" + strconv.Itoa(e.Line) + ": " + text
	}
	return printable(text)
}
