package start

import (
	"runtime/debug"

	"github.com/slipway-dev/slipway/internal/observe"
)

// The linker sets version in releases, and all three for images of the Dockerfiles, which have no git checkout. The go command
// embeds what is empty. commitDate is in RFC 3339.
var version, commit, commitDate string

// Version returns the version of this build of Slipway.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// Build describes the source of this build. Commit and CommitDate are empty if it was not built from a git checkout, and the
// linker did not set them.
type Build struct {
	Version, Commit string
	CommitDate      string // in RFC 3339
	Modified        bool   // the source had uncommitted changes
}

// BuildInfo returns the source of this build.
func BuildInfo() Build {
	b := Build{Version: Version(), Commit: commit, CommitDate: commitDate}
	info, ok := debug.ReadBuildInfo()
	if !ok || commit != "" { // the embedded date and changes are of the embedded commit
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.CommitDate = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// buildInfo returns the version and revision of this build, for the metrics.
func buildInfo() observe.Build {
	b := BuildInfo()
	return observe.Build{Version: b.Version, Revision: b.Commit}
}
