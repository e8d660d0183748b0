// Package renamed accepts the old names of command-line flags for one release.
package renamed

import "github.com/spf13/pflag"

// Flag lets the flag current be set by its old name too. The old name is not in the help, and a use of it prints a warning
// with the new name.
func Flag(fs *pflag.FlagSet, old, current string) {
	alias := *fs.Lookup(current)
	alias.Name, alias.Shorthand = old, ""
	alias.Hidden, alias.Deprecated = true, "use --"+current
	fs.AddFlag(&alias)
}
