package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/job"
)

// tokenizeOptions are the flags of `tokenize`.
type tokenizeOptions struct {
	data.Config
	out   string
	force bool
}

func newTokenizeCommand() *cobra.Command {
	var o tokenizeOptions
	cmd := verb(&cobra.Command{
		Use:   "tokenize FILE... --out OUT",
		Short: "Write documents as a file of tokens (offline)",
		Long: `Write the documents of FILE..., which are files, directories or glob patterns as in data.files of a job file, as
tokens to the file OUT. A job reads it with data.format: tokens and the same data.tokenizer; the file is mapped, so it
need not fit in memory, and nothing is tokenized again. OUT appears whole or not at all. A file that is there is replaced
only with --force, and never when it is one of FILE... or the tokenizer.`,
		Example: `  avgpipectl tokenize --tokenizer tokenizer.json 'corpus/**/*.txt' --out corpus.tokens
  avgpipectl tokenize --format jsonl --column body articles.jsonl --out articles.tokens`,
	}, func(c *call) error { return c.tokenize(o) })
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "", "the `FILE` to write")
	f.BoolVar(&o.force, "force", false, "replace OUT if it is there")
	f.StringVar(&o.Tokenizer, "tokenizer", job.TokenizerBytes, "`bytes`, or the path of a tokenizer.json or its directory")
	o.Format = "text"
	choiceVar(cmd, &o.Format, "format", "", "`format` of the files", []string{"text", "jsonl", "csv", "tsv", "parquet"})
	f.StringVar(&o.Columns.Text, "column", "", "`name` of the column with the text, of tables (default text)")
	f.BoolVar(&o.NoHeader, "no-header", false, "the first line of csv and tsv files names no columns; they are 1, 2, ...")
	return cmd
}

// checkOut refuses an output that is missing, or that is there and may not be replaced.
func (o *tokenizeOptions) checkOut(files []string) error {
	if o.out == "" {
		if n := len(files) - 1; n > 0 {
			return usagef("tokenize: the output is a flag; if it is the last file, write: avgpipectl tokenize %s --out %s",
				strings.Join(files[:n], " "), files[n])
		}
		return usagef("tokenize: say where to write the tokens: avgpipectl tokenize %s --out FILE", strings.Join(files, " "))
	}
	if dir, err := os.Stat(filepath.Dir(o.out)); err != nil || !dir.IsDir() {
		return usagef("tokenize: --out %s: there is no directory %s; make it first", o.out, filepath.Dir(o.out))
	}
	return replaceable(o.out, o.force)
}

func (c *call) tokenize(o tokenizeOptions) error {
	if err := o.checkOut(c.args); err != nil {
		return err
	}
	paths := []*string{&o.Tokenizer}
	if o.Tokenizer == job.TokenizerBytes {
		paths = nil
	}
	o.Files = slices.Clone(c.args)
	for i := range o.Files {
		paths = append(paths, &o.Files[i])
	}
	for _, path := range paths {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("tokenize %s: %w", *path, err)
		}
		*path = absolute
	}
	h, notes, err := data.WriteTokens(c.ctx, o.Config, o.out)
	if bad, ok := errors.AsType[*data.Error](err); ok {
		return usagef("tokenize: %w", bad)
	}
	if err != nil {
		return fmt.Errorf("tokenize: %w", err)
	}
	view := map[string]any{
		"file": o.out, "documents": h.Documents, "tokens": h.Tokens, "vocabulary": h.Vocabulary, "sha256": hex.EncodeToString(h.Digest[:]), "notes": notes,
	}
	return c.show(view, func(p *page) {
		for _, note := range notes {
			p.printf("%s\n", note)
		}
		p.printf("%s holds %d tokens of %d documents, of a vocabulary of %d\n", o.out, h.Tokens, h.Documents, h.Vocabulary)
	})
}
