package docs_test

import (
	"strings"
	"testing"
)

func TestPageIsParsedIntoSteps(t *testing.T) {
	page := "# P\n\n```yaml file=a/b.yaml\na: 1\n```\n\n- in a list\n\n  ```console numbers-vary exit=3\n  $ one \\\n    more\n  said 7\n  $ cat <<E |\n  > x\n  > E\n" +
		"  > two\n  ```\n\n```console not-run: no moon\n$ fly\n```\n\n```yaml\nread: me\n```\n"
	steps, err := parsePage("p.md", []byte(page))
	if err != nil || len(steps) != 4 {
		t.Fatalf("%d steps, %v: %+v", len(steps), err, steps)
	}
	if f := steps[0]; f.file != "a/b.yaml" || f.content != "a: 1\n" {
		t.Errorf("the file is %+v", f)
	}
	if c := steps[1]; c.text != "one \\\n  more" || len(c.prints) != 1 || c.exit != 0 || !c.varies || c.where() != "p.md:10" {
		t.Errorf("the first command is %+v at %s", c, c.where())
	}
	if c := steps[2]; c.text != "cat <<E |\nx\nE\ntwo" || c.prints != nil || c.exit != 3 {
		t.Errorf("the second command is %+v", c)
	}
	if c := steps[3]; c.text != "fly" || c.notRun != "no moon" {
		t.Errorf("the command that is not run is %+v", c)
	}
	for page, want := range map[string]string{
		"    kubectl get nodes\n":                "indented block",
		"```console\nno prompt\n```\n":           "not with a prompt",
		"```console later\n$ x\n```\n":           "want exit=CODE",
		"```yaml file=../x\na: 1\n```\n":         "leads out",
		"text\n\n    $ slipway status -o json\n": "indented block",
	} {
		if _, err := parsePage("p.md", []byte(page)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", page, err, want)
		}
	}
}

func TestOutputIsComparedWithoutVolatileParts(t *testing.T) {
	shown := []string{"NAME   AGE", "web-6b95bc6f5d-tmbqj   5m3s", "…", "done at 2026-11-22T01:38:34Z, …"}
	for output, want := range map[string]bool{
		"NAME AGE\nweb-7844846b-t6dx2  12s\ndone at 2027-01-01T00:00:00Z, all\n":       true,
		"NAME AGE\nweb-7844846b-t6dx2  12s\na\n\nb\ndone at 2027-01-01T00:00:00Z, all": true,
		"NAME AGE\nweb-7844846b-t6dx2  12s\n":                                          false,
		"NAME\nweb-7844846b-t6dx2  12s\ndone at 2027-01-01T00:00:00Z, all\n":           false,
		"NAME AGE\ndb-7844846b-t6dx2  12s\ndone at 2027-01-01T00:00:00Z, all\n":        false,
		"NAME AGE\nweb-7844846b-t6dx2  12s\ndone at 2027-01-01T00:00:00Z, all\nmore\n": false,
	} {
		if err := compareOutput(shown, output, false); (err == nil) != want {
			t.Errorf("%q: %v, want %v", output, err, want)
		}
	}
	line := []string{"aks-ci-12345678-vmss000001: 7 of 12"}
	if compareOutput(line, "aks-ci-12345678-vmss00000b: 9 of 10\n", true) != nil {
		t.Error("varying numbers are compared")
	}
	if compareOutput(line, "aks-ci-12345678-vmss00000b: 9 of 10\n", false) == nil {
		t.Error("fixed numbers are not compared")
	}
	if compareOutput(line, "aks-db-12345678-vmss00000b: 9 of 10\n", true) == nil {
		t.Error("the names of different pools are equal")
	}
}
