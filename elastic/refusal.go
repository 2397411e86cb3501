package elastic

import "fmt"

// SettingError says what is wrong with a setting of an averaging method.
type SettingError struct {
	// Key is that of the job file which is wrong, Nearest the nearest value that it may have; empty where none is nearer than others.
	Key, Nearest string
	Problem      string
	method       string // that reads the setting; empty: all do
}

func (e *SettingError) Error() string {
	if e.method == "" {
		return e.Problem
	}
	return fmt.Sprintf("%s (averaging.method %s)", e.Problem, e.method)
}

// refuse refuses the value of a key of the section averaging.
func refuse(setting, nearest, format string, args ...any) error {
	key := "averaging." + setting
	return &SettingError{Key: key, Nearest: nearest, Problem: key + " is " + fmt.Sprintf(format, args...)}
}
