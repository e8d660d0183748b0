// Command wordlint checks comments, messages, pages, identifiers and commit subjects against docs/glossary.md.
//
// It fails on an expression that the glossary retires, and on a commit subject that is too long or not imperative. It also
// fails if too many comments or paragraphs are hard to read. Run it from the root of the repository:
//
//	go run ./tools/wordlint [-list] [FILE...]
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

func main() {
	list := flag.Bool("list", false, "print every block that is hard to read, also if their share is allowed")
	flag.Parse()
	problems, err := lint(".", flag.Args(), *list, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "wordlint:", err)
		os.Exit(2)
	}
	if problems > 0 {
		fmt.Fprintf(os.Stderr, "wordlint: %d problems; docs/glossary.md has the words, CONTRIBUTING.md the style\n", problems)
		os.Exit(1)
	}
}

// lint checks the named files of the repository at root. Without names it checks all tracked files and the commit
// subjects. It writes a line for each problem to w, and returns the number of problems.
func lint(root string, names []string, list bool, w io.Writer) (problems int, err error) {
	glossary, err := readGlossary(root)
	if err != nil {
		return 0, err
	}
	report := func(format string, args ...any) {
		problems++
		fmt.Fprintf(w, format+"\n", args...)
	}
	if len(names) == 0 {
		if names, err = trackedFiles(root); err != nil {
			return 0, err
		}
		subjects, err := commitSubjects(root)
		if err != nil {
			return 0, err
		}
		for _, s := range subjects {
			if fault := commitSubjectFault(s); fault != "" {
				report("commit %q: %s", s, fault)
			}
		}
	}
	shares := map[kind]*share{}
	for _, name := range names {
		texts, err := readTexts(root, name)
		if err != nil {
			return 0, err
		}
		for _, t := range texts {
			if r := glossary.findRetiredExpression(t); r != "" {
				report("%s:%d: write the term of docs/glossary.md in place of %q", name, t.line, r)
			}
			if _, limited := allowedPercent[t.kind]; !limited || len(strings.Fields(t.text)) < minWords {
				continue
			}
			s := shares[t.kind]
			if s == nil {
				s = &share{}
				shares[t.kind] = s
			}
			s.blocks++
			if faults := readabilityFaults(t.text); len(faults) > 0 {
				s.hard = append(s.hard, fmt.Sprintf("%s:%d: %s", name, t.line, strings.Join(faults, ", ")))
			}
		}
	}
	for _, k := range []kind{comment, testComment, paragraph} {
		s := shares[k]
		if s == nil {
			continue
		}
		over := 100*len(s.hard) > allowedPercent[k]*s.blocks
		if list || over {
			for _, h := range s.hard {
				fmt.Fprintln(w, h)
			}
		}
		if over {
			report("%ss: %d of %d are hard to read, %d %% allowed", k, len(s.hard), s.blocks, allowedPercent[k])
		}
	}
	return problems, nil
}

// share counts the texts of one kind, and lists the texts that are hard to read.
type share struct {
	blocks int
	hard   []string // a line for each block that is hard to read
}

// trackedFiles returns the Go and Markdown files that git tracks, as paths relative to root. It leaves out files
// that must contain retired expressions: the test of this command, and files about old names of the API.
func trackedFiles(root string) ([]string, error) {
	out, err := exec.Command("git", "-C", root, "ls-files", "*.go", "*.md",
		":(exclude)tools/wordlint/main_test.go", ":(exclude)docs/renamed.md", ":(exclude)*/old_names*.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// commitSubjects returns the subjects of all commits since this command was added, except merges. If a shallow clone
// lacks the commit that added this command, the result is empty.
func commitSubjects(root string) ([]string, error) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", root}, args...)...).Output() //nolint:gosec,noctx // constant arguments
		return strings.TrimSpace(string(out)), err
	}
	first, err := git("log", "--diff-filter=A", "--format=%H", "--", "tools/wordlint/main.go")
	if err != nil {
		return nil, fmt.Errorf("git log: %w", err)
	}
	if first == "" {
		return nil, nil
	}
	lines := strings.Fields(first)
	out, err := git("log", "--no-merges", "--format=%s", lines[len(lines)-1]+"..HEAD")
	if err != nil || out == "" {
		return nil, err
	}
	return strings.Split(out, "\n"), nil
}
