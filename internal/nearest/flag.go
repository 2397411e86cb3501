package nearest

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// Flag adds to an error about flags which of them is spelled most like the one that is not there.
func Flag(err error, flags *pflag.FlagSet) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := Word(unknown.GetSpecifiedName(), names); near != "" {
		return fmt.Errorf("%w; did you mean --%s?", err, near)
	}
	return err
}
