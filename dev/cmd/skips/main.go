// Command skips lists the skipped tests with their reasons, and fails if a reason is unknown.
//
//	go run ./cmd/skips -reasons ../.ci/skips.txt EVENTS...
//
// EVENTS are files with the output of `go test -json` of one or several runs. A test that passed in any run does not
// count as skipped. Each line of the file of reasons has a regular expression for the whole of PACKAGE.TEST, spaces, and
// the reason.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	reasons := flag.String("reasons", "", "`file` of reasons")
	flag.Parse()
	if err := run(*reasons, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "skips:", err)
		os.Exit(1)
	}
}

func run(file string, events []string, out io.Writer) error {
	known, err := readReasons(file)
	if err != nil {
		return err
	}
	skipped, err := skippedTests(events)
	if err != nil {
		return err
	}
	unexplained := printReasons(skipped, known, out)
	if len(unexplained) > 0 {
		return fmt.Errorf("%s has no reason for these skipped tests: run them, or add a line with the reason:\n  %s",
			file, strings.Join(unexplained, "\n  "))
	}
	return nil
}

// skipReason is why some tests may be skipped.
type skipReason struct {
	line  string
	tests *regexp.Regexp
	why   string
	count int
}

// readReasons reads the file of reasons. It ignores empty lines and lines that begin with #.
func readReasons(file string) ([]*skipReason, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []*skipReason
	for n, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		pattern, why, _ := strings.Cut(line, " ")
		why = strings.TrimSpace(why)
		if why == "" {
			return nil, fmt.Errorf("%s:%d: %q: must be a regular expression, a space and the reason", file, n+1, line)
		}
		tests, err := regexp.Compile("^(?:" + pattern + ")$")
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n+1, err)
		}
		all = append(all, &skipReason{line: line, tests: tests, why: why})
	}
	return all, nil
}

// testEvent is one line of `go test -json`.
type testEvent struct{ Action, Package, Test string }

// skippedTests returns PACKAGE.TEST of the tests that no run has executed, sorted.
func skippedTests(files []string) ([]string, error) {
	if len(files) == 0 {
		return nil, errors.New("no event files: give files with the output of go test -json")
	}
	ended := map[string]string{}
	for _, file := range files {
		if err := recordTestOutcomes(file, ended); err != nil {
			return nil, err
		}
	}
	var skipped []string
	for test, action := range ended {
		if action == "skip" {
			skipped = append(skipped, test)
		}
	}
	slices.Sort(skipped)
	return skipped, nil
}

// recordTestOutcomes records how each test ended. A test that was executed once is never skipped.
func recordTestOutcomes(file string, ended map[string]string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	lines := bufio.NewReader(f)
	for n := 1; ; n++ {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("%s: %w", file, err)
		}
		if strings.TrimSpace(line) != "" {
			var e testEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return fmt.Errorf("%s:%d: %w", file, n, err)
			}
			test := e.Package + "." + e.Test
			if e.Test != "" && slices.Contains([]string{"pass", "fail", "skip"}, e.Action) && (e.Action != "skip" || ended[test] == "") {
				ended[test] = e.Action
			}
		}
		if err != nil {
			return nil
		}
	}
}

// printReasons prints the number of skipped tests per reason, the most frequent first, and returns the tests without reason.
func printReasons(skipped []string, known []*skipReason, out io.Writer) (unexplained []string) {
	for _, test := range skipped {
		of := slices.IndexFunc(known, func(r *skipReason) bool { return r.tests.MatchString(test) })
		if of < 0 {
			unexplained = append(unexplained, test)
			continue
		}
		known[of].count++
	}
	_, _ = fmt.Fprintf(out, "%d tests were skipped, %d of them for a known reason\n", len(skipped), len(skipped)-len(unexplained))
	slices.SortStableFunc(known, func(a, b *skipReason) int { return cmp.Compare(b.count, a.count) })
	for _, r := range known {
		if r.count > 0 {
			_, _ = fmt.Fprintf(out, "%5d  %s\n", r.count, r.why)
		}
	}
	return unexplained
}
