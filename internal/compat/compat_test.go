package compat

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// ignoreNodes ignores the YAML nodes of entries.
var ignoreNodes = cmpopts.IgnoreUnexported(Entry{})

func TestEntriesAreReadWithTheirLines(t *testing.T) {
	got, err := ReadYAMLEntries([]byte("a: 1\nb:\n  c: 'x y'\n  d:\n# nothing\ne: -1001234567890123\n"), "B")
	must.NoError(t, err)
	want := map[string]Entry{
		"a": {Value: "1", Line: 1}, "b.c": {Value: "x y", Line: 3}, "b.d": {Null: true, Line: 4},
		"e": {Value: "-1001234567890123", Line: 6},
	}
	check.Equal(t, want, got, ignoreNodes)
	for _, empty := range []string{"", "# only a comment\n", "null\n", "---\n"} {
		if got, err := ReadYAMLEntries([]byte(empty)); err != nil || len(got) > 0 {
			t.Errorf("%q: %v, %v", empty, got, err)
		}
	}
}

func TestI10UnreadableFileIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"- a\n": "want keys", "a: b: c\n": "mapping values", "just text": "want keys",
	} {
		got, err := ReadYAMLEntries([]byte(text))
		check.Not(t, err == nil || !strings.Contains(err.Error(), want), "%q: %v, %v; want %q", text, got, err, want)
	}
}

func TestEntriesOfOtherShapesAreKept(t *testing.T) {
	got, err := ReadYAMLEntries([]byte("a: [1]\nb: {c: {d: 1}, e: 2}\n? [x]\n: 1\nf: &f\n  g: 1\nh: *f\ni: {<<: 3}\n"), "b", "f", "h")
	must.NoError(t, err)
	want := map[string]Entry{
		"a": {NonScalarKind: "a list", Line: 1}, "b.c": {NonScalarKind: "keys with values", Line: 2}, "b.e": {Value: "2", Line: 2},
		"?": {Value: "1", Line: 3}, "f.g": {Value: "1", Line: 6}, "h.g": {Value: "1", Line: 6},
		"i": {NonScalarKind: "keys with values", Line: 8},
	}
	check.Equal(t, want, got, ignoreNodes)
}

// TestMergeKeysFollowYAMLRules tests the rules of the YAML library: a key of the mapping itself overrides a merged one, and
// an earlier mapping in a list overrides a later one.
func TestMergeKeysFollowYAMLRules(t *testing.T) {
	for text, want := range map[string]map[string]Entry{
		"<<: {a: 1, b: 2}\nb: 3\n": {"a": {Value: "1", Line: 1}, "b": {Value: "3", Line: 2}},
		"x: &x {a: 1}\ny: &y {a: 2, b: 2}\n<<: [*x, *y]\n": {
			"x.a": {Value: "1", Line: 1}, "y.a": {Value: "2", Line: 2}, "y.b": {Value: "2", Line: 2},
			"a": {Value: "1", Line: 1}, "b": {Value: "2", Line: 2},
		},
		"x: &x {b: {c: 1, d: 1}}\n<<: *x\nb: {c: 2}\n": {"x.b": {NonScalarKind: "keys with values", Line: 1}, "b.c": {Value: "2", Line: 3}},
		"x: &x {b: 1}\na: {<<: *x, c: 2}\n":            {"x.b": {Value: "1", Line: 1}, "a.b": {Value: "1", Line: 1}, "a.c": {Value: "2", Line: 2}},
		"x: &x {b: 1}\ny: &y {<<: *x}\n<<: *y\n":       {"x.b": {Value: "1", Line: 1}, "y.b": {Value: "1", Line: 1}, "b": {Value: "1", Line: 1}},
		"x: &x {b: 1}\n<<: *x\nb:\n":                   {"x.b": {Value: "1", Line: 1}, "b": {Null: true, Line: 3}},
		"<<: {a: &l [1], b: *l}\n":                     {"a": {NonScalarKind: "a list", Line: 1}, "b": {NonScalarKind: "a list", Line: 1}},
		"'<<': 1\n":                                    {"<<": {Value: "1", Line: 1}},
	} {
		got, err := ReadYAMLEntries([]byte(text), "a", "b", "x", "y", "z")
		diff := cmp.Diff(want, got, ignoreNodes)
		check.Not(t, err != nil || diff != "", "%q: %v\n%s", text, err, diff)
	}
}

func TestI10UnreadableMergeKeyIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"a: 1\n<<: secret\n":                                   "line 2: <<: want an alias of keys with values",
		"a:\n  <<: [1]\n":                                      "line 2: a.<<: want an alias",
		"<<: {a: 1, a: 2}\n":                                   "line 1: <<: want an alias",
		"x: &x {a: 1}\n<<: *x\n<<: *x\n":                       "line 3: <<: already set in line 2: want <<: [*one, *other]",
		"a: &a\n  <<: *a\n  b: 1\n":                            "line 2: a.<<: want an alias",
		"x: &x {a: 1}\ny: &y {b: 2}\nz:\n  <<: *x\n  <<: *y\n": "line 5: z.<<: already set",
	} {
		got, err := ReadYAMLEntries([]byte(text), "a", "b", "x", "y", "z")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, %v; want %q", text, got, err, want)
		}
	}
}

// TestEntriesFollowYAMLSpellings tests the spellings that YAML allows for values and keys.
func TestEntriesFollowYAMLSpellings(t *testing.T) {
	got, err := ReadYAMLEntries([]byte("a: &k b\n*k : 1e1\nc: 1_000\nd: !!binary dGV4dA==\ne: 1.5h\na: 2\na: 3\n<<: {f: 0o17}\n"))
	want := map[string]Entry{
		"a": {Value: "b", Line: 1, DuplicateLine: 7}, "b": {Value: "1e1", Line: 2}, "c": {Value: "1_000", Line: 3},
		"d": {Value: "text", Line: 4}, "e": {Value: "1.5h", Line: 5}, "f": {Value: "0o17", Line: 8},
	}
	if diff := cmp.Diff(want, got, ignoreNodes); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for key, want := range map[string]int{"b": 10, "c": 1000, "f": 15} {
		if n, ok := got[key].Int(); n != want || !ok {
			t.Errorf("%s: %d, %t; want %d", key, n, ok, want)
		}
	}
	if n, ok := got["e"].Int(); ok {
		t.Errorf("e: %d, want no integer", n)
	}
}

func TestBooleansOfYAML11AreRead(t *testing.T) {
	for text, want := range map[string][3]bool{
		"yes": {true, true, true}, "On": {true, true, true}, "y": {true, true, true}, "NO": {false, true, true},
		"off": {false, true, true}, "true": {true, false, true}, "False": {false, false, true}, "perhaps": {},
	} {
		value, old, ok := ParseBool(text)
		check.Not(t, [3]bool{value, old, ok} != want, "%s: %t, old %t, ok %t", text, value, old, ok)
	}
}

func TestUnknownKeySuggestsTheClosestKey(t *testing.T) {
	known := []string{"nodename", "taintnode", "webhookurl"}
	for key, want := range map[string]string{
		"nodeName": "nodename", "taintsnode": "taintnode", "webhook_url": "webhookurl", "colour": "",
	} {
		check.Is(t, want, FindClosestName(key, known), key)
	}
}

func FuzzEntries(f *testing.F) {
	f.Add("scheduledEvents:\n  freeze: true\n")
	f.Add("a: &x 1\nb: *x\n")
	f.Add("{[: \xff")
	f.Add("a: &a {<<: *a}\n<<: [*a, {b: 1}]\n")
	f.Fuzz(func(_ *testing.T, text string) {
		if entries, err := ReadYAMLEntries([]byte(text)); err == nil {
			for key := range entries {
				_ = FormatUnknownKeyWarning(key, 1, []string{"nodename"})
			}
		}
	})
}
