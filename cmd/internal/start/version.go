package start

import (
	"runtime/debug"

	"github.com/slipway-dev/slipway/internal/observe"
)

// version is the version that the release build sets. If it is empty, the module's version is used.
var version = ""

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

// buildInfo returns the version and revision of this build, for the metrics.
func buildInfo() observe.Build {
	b := observe.Build{Version: Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}
