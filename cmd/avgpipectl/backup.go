package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/words"
)

func newBackupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write a backup of the control state",
		Long: `Write a backup of the control state to a file: the jobs, their settings and which rounds were committed, with the digests of their files. The
files themselves, which hold the models, are not in it: they stay on the nodes, and in buckets. FILE appears when it is whole; one that is there
is replaced with --force alone, and only a regular file. It can be read by its owner alone, and is as secret as the state directory. It is for administrators.`,
		Example: `  avgpipectl backup /var/backups/avgpipe-monday`,
	}
	force := cmd.Flags().Bool("force", false, "replace FILE")
	return daemonVerb(cmd, func(c *call) error {
		path, err := filepath.Abs(c.args[0])
		if err != nil {
			return fmt.Errorf("backup: %w", err)
		}
		switch info, err := os.Lstat(path); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("backup: %w", err)
		case !info.Mode().IsRegular():
			return usagef("backup: %s is there already, and is no regular file (%s): name another file", path, info.Mode().Type())
		case !*force:
			return usagef("backup: %s is there already: name another file, or say --force", path)
		}
		size, err := c.fetchBackup(path)
		if err != nil {
			return err
		}
		return c.show(backupReport{path, size}, func(p *page) {
			p.printf("wrote %s, %d bytes; avgpipectl restore brings it back\n", path, size)
		})
	})
}

// backupReport is what -o json prints.
type backupReport struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
}

// fetchBackup writes a backup to a file, whole or not at all.
func (c *call) fetchBackup(path string) (size int64, err error) {
	file, err := checkpoint.Create(filepath.Dir(path), 0o600, 0)
	if err != nil {
		return 0, fmt.Errorf("backup: %w", err)
	}
	counted := &counter{to: file}
	if err := c.client.Backup(c.ctx, counted); err != nil {
		return 0, errors.Join(err, file.Abort())
	}
	return counted.bytes, file.Commit(filepath.Base(path))
}

// counter counts what is written.
type counter struct {
	to    io.Writer
	bytes int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.bytes += int64(n)
	return n, err
}

func newRestoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Bring back jobs from a backup of the control state",
		Long: `Bring back the jobs of a backup that the control state does not have, on all nodes, as after the hosts were lost or a job was removed. Jobs that
are there stay as they are, and so do the members, the authority and the tokens. Jobs that had not ended when the backup was made come back as
failed: avgpipectl resume has one go on from a committed round, where the files of that are still there, or in a bucket. It is refused while a
job works, for a backup of another cluster, and where a number is another job's. What is refused changes nothing. It is for administrators.`,
		Example: `  avgpipectl restore /var/backups/avgpipe-monday`,
	}
	return daemonVerb(cmd, func(c *call) error {
		file, err := os.Open(c.args[0])
		if err != nil {
			return usagef("restore: %w", err)
		}
		defer file.Close() //nolint:errcheck // only read
		was, err := c.client.Restore(c.ctx, file)
		if err != nil {
			return err
		}
		return c.show(was, func(p *page) { printRestored(p, was) })
	})
}

// printRestored says what was restored.
func printRestored(p *page, was api.RestoreResponse) {
	p.printf("brought back %d of %s of the backup of node %s, as of %s: %s\n", len(was.Back), words.Count(was.Jobs, "job"), was.Node,
		was.Taken.Local().Format(time.DateTime), cmp.Or(strings.Join(was.Back, ", "), "all are there"))
	if len(was.Interrupted) > 0 {
		p.printf("these had not ended, and are failed now; avgpipectl resume has one go on: %s\n", strings.Join(was.Interrupted, ", "))
	}
}
