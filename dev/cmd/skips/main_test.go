package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func writeTestFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const testReasons = `
# comment
example.com/a.TestNeedsTmux        tmux is not installed
example.com/a.TestKill/.*          takes minutes
`

// testEvents returns events of tests of package example.com/a.
func testEvents(tests ...string) string {
	var b strings.Builder
	for _, test := range tests {
		action, name, _ := strings.Cut(test, " ")
		b.WriteString(`{"Action":"` + action + `","Package":"example.com/a","Test":"` + name + `"}` + "\n")
	}
	return b.String() + `{"Action":"skip","Package":"example.com/without-tests"}` + "\n" + `{"Action":"output","Package":"example.com/a","Output":"x"}`
}

func TestSkipWithoutReasonFails(t *testing.T) {
	for name, tt := range map[string]struct {
		events []string
		wrong  string // in the error; empty means no error
		says   string
	}{
		"nothing skipped":          {events: []string{testEvents("pass TestA")}, says: "0 tests were skipped"},
		"all for known reasons":    {events: []string{testEvents("skip TestNeedsTmux", "skip TestKill/one", "skip TestKill/two", "pass TestA")}, says: "2  takes minutes"},
		"one without reason":       {events: []string{testEvents("skip TestNeedsTmux", "skip TestB")}, wrong: "example.com/a.TestB"},
		"a part of a name":         {events: []string{testEvents("skip TestNeedsTmuxToo")}, wrong: "TestNeedsTmuxToo"},
		"passed in a later run":    {events: []string{testEvents("skip TestB"), testEvents("pass TestB")}, says: "0 tests"},
		"passed in an earlier run": {events: []string{testEvents("pass TestB"), testEvents("skip TestB")}, says: "0 tests"},
		"skipped twice":            {events: []string{testEvents("skip TestB"), testEvents("skip TestB")}, wrong: "TestB"},
		"no events":                {wrong: "no event files"},
		"invalid JSON":             {events: []string{"nonsense"}, wrong: "invalid character"},
	} {
		var files []string
		for _, events := range tt.events {
			files = append(files, writeTestFile(t, "events", events))
		}
		var out bytes.Buffer
		err := run(writeTestFile(t, "reasons", testReasons), files, &out)
		if tt.wrong == "" && err != nil || tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)) {
			t.Errorf("%s: error %v, want %q", name, err, tt.wrong)
		}
		if !strings.Contains(out.String(), tt.says) {
			t.Errorf("%s: output %q, want %q", name, out.String(), tt.says)
		}
	}
}

func TestI10ReasonIsRequired(t *testing.T) {
	for _, text := range []string{"example.com/a.TestB", "example.com/a.(TestB because", "example.com/a.TestB   "} {
		if _, err := readReasons(writeTestFile(t, "reasons", text)); err == nil || !strings.Contains(err.Error(), ":1:") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// Every line of the CI's file has a reason.
func TestCIReasonsAreReadable(t *testing.T) {
	all, err := readReasons(filepath.Join("..", "..", "..", ".ci", "skips.txt"))
	if err != nil || len(all) == 0 {
		t.Errorf("%d reasons: %v", len(all), err)
	}
}
