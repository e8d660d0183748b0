// Command docgen writes the pages of docs/reference that are made of the code and its comments. The page of the commands is
// written by a test of cmd/slipway, whose commands no other package can import.
package main

//go:generate go run .

import (
	"fmt"
	"os"
	"path/filepath"
)

// pages make each page of docs/reference, by the name of its file.
var pages = map[string]func() string{
	"conditions.md":    conditionsPage,
	"configuration.md": configurationPage,
	"crds.md":          crdsPage,
	"events.md":        eventsPage,
	"metrics.md":       metricsPage,
}

func main() {
	for name, page := range pages {
		must(os.WriteFile(repository("docs/reference/"+name), []byte(page()), 0o644)) //nolint:gosec // for everybody to read
	}
}

// repository is a path in the repository, from its root. go generate and go test run in the folder of this package.
func repository(path string) string { return filepath.Join("..", "..", filepath.FromSlash(path)) }

// failf ends the making of a page that would be wrong or incomplete.
func failf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}
