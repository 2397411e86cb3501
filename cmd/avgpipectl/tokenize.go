package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/job"
)

// tokenizeOptions are the flags of `tokenize`.
type tokenizeOptions struct {
	output
	out       string
	force     bool
	tokenizer string
	format    string
	column    string
	noHeader  bool
}

// tokenizeView is the json output.
type tokenizeView struct {
	File       string   `json:"file"`
	Documents  uint64   `json:"documents"`
	Tokens     uint64   `json:"tokens"`
	Vocabulary uint32   `json:"vocabulary"`
	Digest     string   `json:"sha256"` // of the tokens
	Notes      []string `json:"notes,omitempty"`
}

func newTokenizeCommand() *cobra.Command {
	var o tokenizeOptions
	cmd := &cobra.Command{
		Use:   "tokenize FILE... --out OUT",
		Short: "Write documents as a file of tokens (offline)",
		Long: `Write the documents of FILE..., which are files, directories or glob patterns as in data.files of a job file, as
tokens to the file OUT. A job reads it with data.format: tokens and the same data.tokenizer; the file is mapped, so it
need not fit in memory, and nothing is tokenized again. OUT appears whole or not at all. A file that is there is replaced
only with --force, and never when it is one of FILE... or the tokenizer.`,
		Example: `  avgpipectl tokenize --tokenizer tokenizer.json 'corpus/**/*.txt' --out corpus.tokens
  avgpipectl tokenize --format jsonl --column body articles.jsonl --out articles.tokens`,
		Args: arguments(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTokenize(cmd.Context(), o, args, cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.out, "out", "", "the `FILE` to write")
	cmd.Flags().BoolVar(&o.force, "force", false, "replace OUT if it is there")
	cmd.Flags().StringVar(&o.tokenizer, "tokenizer", job.TokenizerBytes, "`bytes`, or the path of a tokenizer.json or its directory")
	cmd.Flags().StringVar(&o.format, "format", "text", "`format` of the files: "+strings.Join(tokenFormats, ", "))
	cmd.Flags().StringVar(&o.column, "column", "", "`name` of the column with the text, of tables (default text)")
	cmd.Flags().BoolVar(&o.noHeader, "no-header", false, "the first line of csv and tsv files names no columns; they are 1, 2, ...")
	return cmd
}

// tokenFormats are the values of --format.
var tokenFormats = []string{"text", "jsonl", "csv", "tsv", "parquet"}

// checkOut refuses an output that is missing, or that is there and may not be replaced.
func (o *tokenizeOptions) checkOut(files []string) error {
	if o.out == "" {
		if n := len(files) - 1; n > 0 {
			return &usageError{fmt.Errorf("tokenize: the output is a flag; if it is the last file, write: avgpipectl tokenize %s --out %s",
				strings.Join(files[:n], " "), files[n])}
		}
		return &usageError{fmt.Errorf("tokenize: say where to write the tokens: avgpipectl tokenize %s --out FILE", strings.Join(files, " "))}
	}
	if dir, err := os.Stat(filepath.Dir(o.out)); err != nil || !dir.IsDir() {
		return &usageError{fmt.Errorf("tokenize: --out %s: there is no directory %s; make it first", o.out, filepath.Dir(o.out))}
	}
	info, err := os.Lstat(o.out)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("tokenize: --out: %w", err)
	case !info.Mode().IsRegular():
		return &usageError{fmt.Errorf("tokenize: --out %s is there and is no plain file; name another one", o.out)}
	case !o.force:
		return &usageError{fmt.Errorf("tokenize: --out %s is there; name another file, or replace it with --force", o.out)}
	}
	return nil
}

func runTokenize(ctx context.Context, o tokenizeOptions, files []string, out io.Writer) error {
	if err := o.checkOut(files); err != nil {
		return err
	}
	to := o.out
	c := data.Config{Format: o.format, Tokenizer: o.tokenizer, NoHeader: o.noHeader, Columns: data.Columns{Text: o.column}}
	for _, f := range files {
		path, err := filepath.Abs(f)
		if err != nil {
			return fmt.Errorf("tokenize %s: %w", f, err)
		}
		c.Files = append(c.Files, path)
	}
	if c.Tokenizer != job.TokenizerBytes {
		path, err := filepath.Abs(c.Tokenizer)
		if err != nil {
			return fmt.Errorf("tokenize: %w", err)
		}
		c.Tokenizer = path
	}
	h, notes, err := data.WriteTokens(ctx, c, to)
	if bad, ok := errors.AsType[*data.Error](err); ok {
		return &usageError{fmt.Errorf("tokenize: %w", bad)}
	}
	if err != nil {
		return fmt.Errorf("tokenize: %w", err)
	}
	if o.json() {
		return printJSON(out, tokenizeView{
			File: to, Documents: h.Documents, Tokens: h.Tokens, Vocabulary: h.Vocabulary, Digest: hex.EncodeToString(h.Digest[:]), Notes: notes,
		})
	}
	for _, note := range notes {
		if _, err := fmt.Fprintln(out, note); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "%s holds %d tokens of %d documents, of a vocabulary of %d\n", to, h.Tokens, h.Documents, h.Vocabulary)
	return err
}
