package compat

import (
	"errors"
	"flag"
	"strings"
	"time"
)

// UsageError means that the command line is invalid. The flag set has already printed the error.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// ParseFlags parses a command line. It returns flag.ErrHelp after -help, and a *UsageError for an unknown flag or an invalid
// value.
func ParseFlags(fs *flag.FlagSet, args []string) error {
	err := fs.Parse(args)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return err
	}
	return &UsageError{Err: err}
}

// ListFlagsOnCommandLine returns the names of the flags on a command line that ParseFlags has parsed. flag.Visit would also
// visit flags that the environment has set.
func ListFlagsOnCommandLine(fs *flag.FlagSet, args []string) []string {
	var names []string
	for i := 0; i < len(args)-fs.NArg(); i++ {
		name, _, hasValue := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(args[i], "-"), "-"), "=")
		if fs.Lookup(name) == nil {
			continue // the terminator --
		}
		names = append(names, name)
		if !hasValue && !IsBoolFlag(fs, name) {
			i++ // the value of the flag
		}
	}
	return names
}

// IsBoolFlag reports whether the value of a flag is a boolean.
func IsBoolFlag(fs *flag.FlagSet, name string) bool { return DescribeFlagValue(fs, name) == Boolean }

// Descriptions of the values that a flag accepts.
const (
	Boolean     = "true or false"
	WholeNumber = "a whole number"
)

// DescribeFlagValue returns a description of the values that a flag accepts.
func DescribeFlagValue(fs *flag.FlagSet, name string) string {
	getter, _ := fs.Lookup(name).Value.(flag.Getter)
	switch getter.Get().(type) {
	case bool:
		return Boolean
	case int:
		return WholeNumber
	case time.Duration:
		return "a duration with its unit, such as 5s"
	}
	return "text"
}
