package docs_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// The tests act on these kinds of blocks of a page. The words after the fence select the kind:
//
//	console                  commands, each after "$ " and continued after "> " or a backslash, with their output.
//	console exit=2           the same, and the last command ends with that code.
//	console numbers-vary     the same, and numbers differ between runs.
//	console not-run: WHY     commands that cannot run here; testdata/not-run.txt lists them all.
//	sh                       a script without shown output.
//	LANGUAGE file=NAME       a file for the commands after it
//
// All other blocks are only for reading.

type command struct {
	page   string
	line   int // the line where it begins
	text   string
	prints []string // the page's output of the command; nil if it shows none
	exit   int
	varies bool   // its output has other numbers each time
	notRun string // the reason if the test does not run it
}

func (c command) where() string { return fmt.Sprintf("%s:%d", c.page, c.line) }

// step is a command, or a file to write before the next command.
type step struct {
	command
	file, content string
}

var pageParser = goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser()

// readPage returns the steps of a page in order.
func readPage(root, name string) ([]step, error) {
	raw, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	return parsePage(name, raw)
}

func parsePage(name string, raw []byte) (steps []step, err error) {
	walk := func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch block := n.(type) {
		case *ast.CodeBlock:
			if line := commandIn(lines(block, raw)); line != "" {
				return ast.WalkStop, fmt.Errorf("%s: %q is in an indented block, which the test does not run: make it ```console", name, line)
			}
		case *ast.FencedCodeBlock:
			more, err := readBlock(name, block, raw)
			if err != nil {
				return ast.WalkStop, err
			}
			steps = append(steps, more...)
		}
		return ast.WalkContinue, nil
	}
	if err := ast.Walk(pageParser.Parse(text.NewReader(raw)), walk); err != nil {
		return nil, err
	}
	return steps, nil
}

// programs matches lines that begin with one of the pages' programs.
var programs = regexp.MustCompile(`^\s*(?:\$ )?(?:bin/)?(?:slipway|kubectl|helm|curl|make|openstack|az)\b `)

// commandIn returns the first line that is a command, if any.
func commandIn(text string) string {
	for line := range strings.Lines(text) {
		if programs.MatchString(line) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

func lines(n ast.Node, raw []byte) string {
	var b strings.Builder
	for i := range n.Lines().Len() {
		segment := n.Lines().At(i)
		b.Write(segment.Value(raw))
	}
	return b.String()
}

func readBlock(page string, block *ast.FencedCodeBlock, raw []byte) ([]step, error) {
	if block.Info == nil || block.Lines().Len() == 0 {
		return nil, nil
	}
	line := 1 + bytes.Count(raw[:block.Lines().At(0).Start], []byte("\n"))
	language, rest, _ := strings.Cut(string(block.Info.Segment.Value(raw)), " ")
	body := lines(block, raw)
	rest = strings.TrimSpace(rest)
	if name, is := strings.CutPrefix(rest, "file="); is {
		if !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s:%d: file=%s leads out of the directory that the page is read in", page, line, name)
		}
		return []step{{file: name, content: body}}, nil
	}
	switch language {
	case "sh":
		return []step{{command: command{page: page, line: line, text: strings.TrimSpace(body)}}}, nil
	case "console":
		return readConsole(command{page: page, line: line}, rest, body)
	}
	return nil, nil
}

func readConsole(at command, words, body string) ([]step, error) {
	exit := 0
	if why, is := strings.CutPrefix(words, "not-run: "); is {
		at.notRun, words = why, ""
	}
	for _, word := range strings.Fields(words) {
		code, is := strings.CutPrefix(word, "exit=")
		n, err := strconv.Atoi(code)
		switch {
		case word == "numbers-vary":
			at.varies = true
		case is && err == nil:
			exit = n
		default:
			return nil, fmt.Errorf("%s: console %q: want exit=CODE, numbers-vary or not-run: WHY", at.where(), words)
		}
	}
	var steps []step
	continues := false
	for i, text := range strings.Split(strings.TrimRight(body, "\n"), "\n") {
		typed, prompt := strings.CutPrefix(text, "$ ")
		more, second := strings.CutPrefix(text, "> ")
		last := len(steps) - 1
		switch {
		case prompt:
			c := at
			c.line, c.text = at.line+i, typed
			steps = append(steps, step{command: c})
			continues = true
		case last < 0:
			return nil, fmt.Errorf("%s: a block of commands begins with %q and not with a prompt", at.where(), text)
		case continues && second:
			steps[last].text += "\n" + more
		case continues && strings.HasSuffix(steps[last].text, `\`):
			steps[last].text += "\n" + text
		default:
			continues = false
			steps[last].prints = append(steps[last].prints, text)
		}
	}
	steps[len(steps)-1].exit = exit
	return steps, nil
}

// volatile lists output that differs each time, with its replacement for comparison.
var volatile = []struct {
	is *regexp.Regexp
	as string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)`), "TIME"},
	{regexp.MustCompile(`[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}`), "UUID"},
	{regexp.MustCompile(`127\.0\.0\.1:\d+`), "ADDRESS"},
	// Kubernetes adds these parts to generated names. They belong to a ReplicaSet, its pod, and generateName.
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{6,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-HASH"},
	{regexp.MustCompile(`-[bcdfghjklmnpqrstvwxz2456789]{5}\b`), "-HASH"},
	{regexp.MustCompile(`-idle-[0-9a-f]{8}\b`), "-idle-HASH"},
	{regexp.MustCompile(`\b(?:\d+(?:\.\d+)?(?:ms|µs|s|m|h|d))+\b`), "DURATION"},
	{regexp.MustCompile(`\b\d+:\d\d\b`), "DURATION"},
	{regexp.MustCompile(`\s+`), " "},
}

// removeVolatile replaces the volatile parts of a line.
func removeVolatile(line string, varies bool) string {
	for _, v := range volatile {
		line = v.is.ReplaceAllString(line, v.as)
	}
	if varies {
		line = varying.ReplaceAllString(line, "N")
	}
	return strings.TrimSpace(line)
}

// varying matches numbers, and the base-36 numbers of scale set instances in Node names.
var varying = regexp.MustCompile(`\b\d+\b|vmss[0-9a-z]{6}\b`)

// compareOutput returns an error if an output does not match the page. It ignores times, durations, addresses, generated
// names, and column widths. "…" in a line matches any text, and a line with only "…" matches any number of lines.
func compareOutput(want []string, output string, varies bool) error {
	if want == nil {
		return nil
	}
	var pattern strings.Builder
	pattern.WriteString(`(?s)\A`)
	for _, line := range want {
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		parts := strings.Split(removeVolatile(line, varies), "…")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		pattern.WriteString(strings.Join(parts, `[^\n]*`) + `\n`)
	}
	pattern.WriteString(`\z`)
	var got strings.Builder
	for line := range strings.Lines(output) {
		if line = removeVolatile(line, varies); line != "" {
			got.WriteString(line + "\n")
		}
	}
	if regexp.MustCompile(pattern.String()).MatchString(got.String()) {
		return nil
	}
	return fmt.Errorf("the page shows\n%s\nand it printed\n%s", strings.Join(want, "\n"), output)
}
