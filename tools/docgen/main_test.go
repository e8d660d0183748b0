package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGeneratedFilesAreCurrent(t *testing.T) {
	for path, got := range generatedFiles() {
		want, err := os.ReadFile(repositoryPath(path))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s is outdated, run make generate (-want +got):\n%s", path, diff)
		}
	}
}
