//go:build !linux

package checkpoint

import (
	"errors"
	"os"
)

func startWriteOut(*os.File, int64, int64) error { return errors.ErrUnsupported }

func awaitWriteOut(*os.File, int64, int64) error { return errors.ErrUnsupported }
