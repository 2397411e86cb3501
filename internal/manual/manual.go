//go:build man

// Package manual writes the manual pages of a program from its verbs and flags. It is built only with the tag man, so that the
// programs themselves do not link what makes them.
package manual

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Main writes the pages of a program, of a section such as "1", to the directory that is its only argument, and ends the process.
func Main(root *cobra.Command, section string) {
	if err := write(root, section, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "manual pages:", err) //nolint:errcheck // nowhere left to say it
		os.Exit(1)
	}
	os.Exit(0)
}

func write(root *cobra.Command, section string, arguments []string) error {
	if len(arguments) != 1 {
		return fmt.Errorf("%d arguments; want the directory to write to", len(arguments))
	}
	if err := os.MkdirAll(arguments[0], 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true // a date would make each build another
	indent(root)
	header := &doc.GenManHeader{Section: section, Source: "avgpipe", Manual: "avgpipe"}
	return doc.GenManTree(root, header, arguments[0])
}

// indent makes tables of the help stay tables: the generator reads Markdown.
func indent(cmd *cobra.Command) {
	lines := strings.Split(cmd.Long, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "  ") {
			lines[i] = "  " + line
			if i > 0 && !strings.HasPrefix(lines[i-1], "  ") && lines[i-1] != "" {
				lines[i] = "\n" + lines[i]
			}
		}
	}
	cmd.Long = strings.Join(lines, "\n")
	for _, c := range cmd.Commands() {
		indent(c)
	}
}
