package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/job"
)

// tokenizeOptions are the flags of `tokenize`.
type tokenizeOptions struct {
	output
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
		Use:   "tokenize FILE... OUT",
		Short: "Write documents as a file of tokens (offline)",
		Long: `Write the documents of FILE..., which are files, directories or glob patterns as in data.files of a job file, as
tokens to the file OUT. A job reads it with data.format: tokens and the same data.tokenizer; the file is mapped, so it
need not fit in memory, and nothing is tokenized again. OUT appears whole or not at all.

Exit codes:
` + exitHelp,
		Example: `  avgpipectl tokenize --tokenizer tokenizer.json 'corpus/**/*.txt' corpus.tokens
  avgpipectl tokenize --format jsonl --column body articles.jsonl articles.tokens`,
		Args: arguments(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			last := len(args) - 1
			return runTokenize(cmd.Context(), o, args[:last], args[last], cmd.OutOrStdout())
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&o.tokenizer, "tokenizer", job.TokenizerBytes, "`bytes`, or the path of a tokenizer.json or its directory")
	cmd.Flags().StringVar(&o.format, "format", "text", "`format` of the files: text, jsonl, csv, tsv or parquet")
	cmd.Flags().StringVar(&o.column, "column", "", "`name` of the column with the text, of tables (default text)")
	cmd.Flags().BoolVar(&o.noHeader, "no-header", false, "the first line of csv and tsv files names no columns; they are 1, 2, ...")
	return cmd
}

func runTokenize(ctx context.Context, o tokenizeOptions, files []string, to string, out io.Writer) error {
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
