package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferencePagesAreCurrent(t *testing.T) {
	for name, page := range pageMakers {
		want, err := os.ReadFile(repositoryPath("docs/reference/" + name))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), page()); diff != "" {
			t.Errorf("docs/reference/%s is outdated, run make generate (-want +got):\n%s", name, diff)
		}
	}
}
