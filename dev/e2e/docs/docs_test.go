// Package docs_test follows the documentation. It types every command of every page into a shell, on a real control
// plane with an emulated cloud. It compares the output with the page.
package docs_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

var update = flag.Bool("update", false, "write testdata/not-run.txt anew")

// readme is the first page, and it is not under docs.
const readme = "README.md"

// runElsewhere maps pages to the other tests that run their commands.
var runElsewhere = map[string]string{
	"docs/writing-a-plugin.md":   "TestPluginTutorialWorks of cmd/slipway",
	"docs/reference/commands.md": "generated: it shows how commands are called and has none to type",
}

// pages returns all pages with something to type, sorted by name.
func pages(t *testing.T, root string) map[string][]step {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(filepath.Join(root, "docs", "*", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]step{}
	for _, file := range append(append(files, more...), filepath.Join(root, readme)) {
		name, err := filepath.Rel(root, file)
		if err != nil {
			t.Fatal(err)
		}
		name = filepath.ToSlash(name)
		if runElsewhere[name] != "" {
			continue
		}
		steps, err := readPage(root, name)
		if err != nil {
			t.Error(err)
		}
		if slices.ContainsFunc(steps, func(s step) bool { return s.text != "" }) {
			all[name] = steps
		}
	}
	return all
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCommandsThatAreNotRunAreListed(t *testing.T) {
	var list []string
	ran := 0
	for _, steps := range pages(t, root(t)) {
		for _, s := range steps {
			if s.notRun != "" {
				list = append(list, fmt.Sprintf("%s: %s  # %s", s.page, strings.ReplaceAll(s.text, "\n", " "), s.notRun))
			} else if s.text != "" {
				ran++
			}
		}
	}
	slices.Sort(list)
	got := strings.Join(list, "\n") + "\n"
	golden := filepath.Join("testdata", "not-run.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("the commands that are not run have changed (-want +got, -update writes %s anew):\n%s", golden, diff)
	}
	if ran < 4*len(list) {
		t.Errorf("%d commands are run and %d are not", ran, len(list))
	}
	t.Logf("%d commands are run, and %d are not", ran, len(list))
}

func TestCommandsPrintWhatPagesShow(t *testing.T) {
	here := root(t)
	all := pages(t, here)
	programs := clients(t)
	for cluster, names := range clusters(all) {
		t.Run(cluster, func(t *testing.T) {
			t.Parallel()
			bed := start(t)
			for _, name := range names {
				t.Run(strings.TrimSuffix(path.Base(name), ".md"), func(t *testing.T) {
					ctx := testbed.TestContext(t)
					r := &reader{t: t, ctx: ctx, bed: bed, dir: newWorkDir(t, here, bed), replaced: map[string]string{}}
					t.Cleanup(r.tidy)
					if prepare := before[name]; prepare != nil {
						prepare(r)
					}
					r.read(all[name], programs)
				})
			}
		})
	}
	for name := range before {
		if all[name] == nil {
			t.Errorf("%s has a preparation, but no command", name)
		}
	}
}

// clusters divides the pages among two clusters, which run in parallel. In the first, the tutorial comes first, because it
// shows a new cluster. In the second, the pages that install Slipway come last, because they remove the testbed's
// installation.
func clusters(all map[string][]step) map[string][]string {
	ranks := map[string]int{tutorial: -2, readme: -1, doctor: -1}
	divided := map[string][]string{}
	for name := range all {
		cluster := "first"
		if rank, ok := secondCluster[name]; ok {
			cluster, ranks[name] = "second", rank
		}
		divided[cluster] = append(divided[cluster], name)
	}
	for _, names := range divided {
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(ranks[a]-ranks[b], strings.Compare(a, b)) })
	}
	return divided
}

// newWorkDir creates a directory like a clone of the repository. A page may create files in it.
func newWorkDir(t *testing.T, root string, bed *testbed.Testbed) string {
	t.Helper()
	dir := t.TempDir()
	for _, entry := range []string{"api", "bin", "charts", "deploy", "docs", "examples"} {
		if err := os.Symlink(filepath.Join(root, entry), filepath.Join(dir, entry)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(bed.Dir(), filepath.Join(dir, ".dev")); err != nil { // the path of make up
		t.Fatal(err)
	}
	return dir
}

// reader follows the steps of a page.
type reader struct {
	t   *testing.T
	ctx context.Context
	bed *testbed.Testbed
	dir string
	// replaced maps addresses of the page to the addresses of this test.
	replaced map[string]string
}

func (r *reader) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// here replaces a page's addresses with the addresses of this test.
func (r *reader) here(text string) string {
	for is, want := range r.replaced {
		text = strings.ReplaceAll(text, is, want)
	}
	return text
}

func (r *reader) read(steps []step, programs string) {
	r.t.Helper()
	sh, err := startShell(r.ctx, r.dir, r.t.TempDir(), "KUBECONFIG="+r.bed.Kubeconfig(), "PATH="+programs, "HOME="+r.t.TempDir(),
		"TERM=dumb", "LC_ALL=C.UTF-8", "KUBE_EDITOR=false")
	r.check(err)
	defer sh.end()
	for _, s := range steps {
		switch {
		case s.file != "":
			file := filepath.Join(r.dir, s.file)
			r.check(os.MkdirAll(filepath.Dir(file), 0o755))
			r.check(os.WriteFile(file, []byte(r.here(s.content)), 0o600))
		case s.notRun == "":
			r.do(sh, s.command)
		}
	}
}

// do types a command. If the command only reads, do repeats it until the output matches the page. Changes need time to
// appear.
func (r *reader) do(sh *shell, c command) {
	r.t.Helper()
	begun := time.Now()
	for {
		output, code, err := sh.run(r.here(c.text))
		if err != nil {
			r.t.Fatalf("%s: %s: %v (%v)\n%s", c.where(), c.text, err, context.Cause(r.ctx), output)
		}
		wrong := compareOutput(c.prints, output, c.varies)
		if code != c.exit {
			wrong = fmt.Errorf("it ended with %d, want %d:\n%s", code, c.exit, output)
		}
		if wrong == nil {
			r.t.Logf("%6.1fs %s", time.Since(begun).Seconds(), c.text)
			return
		}
		if !onlyReads(c.text) || time.Since(begun) > outputTimeout {
			r.t.Fatalf("%s: %s\n%v", c.where(), c.text, wrong)
		}
		r.check(testbed.Sleep(r.ctx, outputInterval))
	}
}

const (
	// outputTimeout limits the wait for a result that a page shows. Usually it takes seconds.
	outputTimeout  = 2 * time.Minute
	outputInterval = 500 * time.Millisecond
)

// readCommand matches commands that change nothing, because a test can repeat them.
var readCommand = regexp.MustCompile(`^(?:bin/)?(?:kubectl (?:-n \S+ )?(?:get|describe|logs|events)|slipway (?:status|plan|why|doctor|top)|curl -[a-zA-Z]* ?['"]?http|curl ['"]?http|cat|grep)\b`)

func onlyReads(text string) bool {
	return readCommand.MatchString(text) && !strings.Contains(text, "> ") && !regexp.MustCompile(` (?:-d|-X|--data\S*) `).MatchString(text)
}
