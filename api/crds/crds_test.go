package crds_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/crds"
)

var update = flag.Bool("update", false, "write the golden file for definitions with a higher generation")

// goldenFile has the last generation and hash of each definition.
const goldenFile = "testdata/generations.golden"

// state is the generation and the hash of one definition.
type state struct {
	generation uint64
	hash       string
}

// A program does not replace a definition with a higher generation. So a changed definition with the same generation would
// be replaced by an older program.
func TestChangedDefinitionHasHigherGeneration(t *testing.T) {
	was, now := readGolden(t), readDefinitions(t)
	for name, is := range now {
		if err := checkGeneration(was[name], is); err != nil {
			t.Errorf("%s: %v", name, err)
			delete(now, name)
			if before, ok := was[name]; ok {
				now[name] = before
			}
		}
	}
	if *update {
		writeGolden(t, now)
	} else if !maps.Equal(was, now) {
		t.Errorf("%s does not match the definitions: run go test ./api/crds -update", goldenFile)
	}
}

// checkGeneration returns an error if a definition may not replace its former state. The former state of a new definition is
// zero.
func checkGeneration(was, is state) error {
	const raise = "raise the number in +kubebuilder:metadata:annotations=\"" + crds.GenerationAnnotation + "=%d\" of the type in " +
		"api/v1alpha1 to %d, then: go generate ./api/v1alpha1; go test ./api/crds -update"
	switch {
	case is.generation == 0:
		return fmt.Errorf("the generation is missing or not a number: "+raise, is.generation, was.generation+1)
	case is.generation < was.generation:
		return fmt.Errorf("the generation was %d: "+raise, was.generation, is.generation, was.generation+1)
	case is.generation == was.generation && is.hash != was.hash:
		return fmt.Errorf("the spec has changed, the generation has not: "+raise, is.generation, was.generation+1)
	}
	return nil
}

func TestGenerationIsCompared(t *testing.T) {
	for name, c := range map[string]struct {
		was, is state
		good    bool
	}{
		"nothing has changed":          {state{1, "a"}, state{1, "a"}, true},
		"changed, and raised":          {state{1, "a"}, state{2, "b"}, true},
		"raised for nothing":           {state{1, "a"}, state{2, "a"}, true},
		"a new type":                   {state{}, state{1, "a"}, true},
		"a new type without a number":  {state{}, state{0, "a"}, false},
		"changed, and forgotten":       {state{1, "a"}, state{1, "b"}, false},
		"lowered":                      {state{2, "a"}, state{1, "a"}, false},
		"the marker is no more there":  {state{1, "a"}, state{0, "a"}, false},
		"changed back, and not raised": {state{2, "b"}, state{2, "a"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := checkGeneration(c.was, c.is); (err == nil) != c.good {
				t.Error(err)
			}
		})
	}
}

func TestUnreadableGenerationIsZero(t *testing.T) {
	for value, want := range map[string]uint64{
		"1": 1, "12": 12, "": 0, "v2": 0, "-1": 0, "+3": 0, "1.5": 0, "1 2": 0, "99999999999999999999": 0,
	} {
		if got := crds.Generation(map[string]string{crds.GenerationAnnotation: value}); got != want {
			t.Errorf("%q: %d, want %d", value, got, want)
		}
	}
	if got := crds.Generation(nil); got != 0 {
		t.Errorf("no annotations: %d", got)
	}
}

// readDefinitions returns the state of each definition by name. It hashes the spec in JSON, because its order is fixed.
func readDefinitions(t *testing.T) map[string]state {
	t.Helper()
	files, err := fs.Glob(crds.Files, "*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d definitions: %v", len(files), err)
	}
	all := map[string]state{}
	for _, file := range files {
		raw, err := crds.Files.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d struct {
			Metadata struct {
				Name        string            `json:"name"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec map[string]any `json:"spec"`
		}
		if err := yaml.Unmarshal(raw, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		spec, err := json.Marshal(d.Spec)
		if err != nil {
			t.Fatal(err)
		}
		all[d.Metadata.Name] = state{crds.Generation(d.Metadata.Annotations), fmt.Sprintf("%x", sha256.Sum256(spec))}
	}
	return all
}

func readGolden(t *testing.T) map[string]state {
	t.Helper()
	file, err := os.Open(goldenFile)
	if errors.Is(err, fs.ErrNotExist) && *update {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }() // It was only read.
	all := map[string]state{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var name string
		var s state
		if _, err := fmt.Sscan(lines.Text(), &name, &s.generation, &s.hash); err != nil {
			t.Fatalf("%s: %q: %v: want a definition's name, number and hash", goldenFile, lines.Text(), err)
		}
		all[name] = s
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func writeGolden(t *testing.T, all map[string]state) {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&b, "%s %d %s\n", name, all[name].generation, all[name].hash)
	}
	if err := os.WriteFile(goldenFile, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}
