// Command docgen writes the generated pages of docs/reference from the code and its comments, and the generated files of
// the Helm charts from their values. It does not write the page of the commands. A test of cmd/slipway does, because other packages cannot import the commands.
package main

//go:generate go run .

import (
	"fmt"
	"os"
	"path/filepath"
)

// pageMakers maps the name of each generated file in docs/reference to the function that returns its content.
var pageMakers = map[string]func() string{
	"conditions.md":    conditionsPage,
	"configuration.md": configurationPage,
	"crds.md":          crdsPage,
	"events.md":        eventsPage,
	"metrics.md":       metricsPage,
}

// generatedFiles returns the content of each generated file by its path in the repository.
func generatedFiles() map[string]string {
	files := chartFiles()
	for name, page := range pageMakers {
		files["docs/reference/"+name] = page()
	}
	return files
}

func main() {
	for path, content := range generatedFiles() {
		must(os.WriteFile(repositoryPath(path), []byte(content), 0o644)) //nolint:gosec // public
	}
}

// repositoryPath returns the path of a file of the repository, relative to this package's folder. Both go generate
// and go test run in this folder.
func repositoryPath(path string) string { return filepath.Join("..", "..", filepath.FromSlash(path)) }

// failf panics with a message. It stops the generation of a page that would otherwise be wrong or incomplete.
func failf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

func must(err error) {
	if err != nil {
		panic(err)
	}
}
