package control

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// RotatedLogPath is a log that was rotated: 1 is the youngest.
func RotatedLogPath(dir string, n int) string { return LogPath(dir) + "." + strconv.Itoa(n) }

// RotateLog makes the job's log the youngest of so many rotated ones, and removes those beyond them. The next who opens the log
// makes a new one. While a worker runs, only the worker may rotate: it puts the new file in the place of the one that it writes to.
func RotateLog(dir string, files int) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("rotate %s: %w", LogPath(dir), err)
	}
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), filepath.Base(LogPath(dir))+".")
		n, err := strconv.Atoi(number)
		if ok && err == nil && n > files && strconv.Itoa(n) == number {
			if err := os.Remove(RotatedLogPath(dir, n)); err != nil {
				return fmt.Errorf("rotate: %w", err)
			}
		}
	}
	from := func(n int) string {
		if n == 0 {
			return LogPath(dir)
		}
		return RotatedLogPath(dir, n)
	}
	for n := files - 1; n >= 0; n-- {
		if err := os.Rename(from(n), from(n+1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("rotate: %w", err)
		}
	}
	return nil
}
