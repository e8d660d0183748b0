package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// renderReference returns the Markdown reference of all commands and flags.
func renderReference() string {
	var b strings.Builder
	b.WriteString("# Commands\n\nAll commands of `slipway` and their flags, generated from the program.\n")
	all := newRootCommand()
	replaceMachineDefaults(all)
	visitCommands(all, func(c *cobra.Command) {
		if !c.Runnable() {
			return
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
		if c.Long != "" {
			fmt.Fprintf(&b, "\n```text\n%s\n```\n", strings.TrimSpace(c.Long))
		}
		fmt.Fprintf(&b, "\n```text\n%s\n", c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(&b, "\n%s\n", strings.TrimRight(c.Example, "\n"))
		}
		b.WriteString("```\n")
		writeFlagTable(&b, c)
	})
	return b.String()
}

// visitCommands visits a command and all visible commands below it, sorted by name.
func visitCommands(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	byName := func(a, b *cobra.Command) int { return strings.Compare(a.Name(), b.Name()) }
	for _, sub := range slices.SortedFunc(slices.Values(c.Commands()), byName) {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			visitCommands(sub, visit)
		}
	}
}

func writeFlagTable(b *strings.Builder, c *cobra.Command) {
	head := "\n| flag | default | |\n|---|---|---|\n"
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := strings.TrimSpace("--" + f.Name + " " + kind)
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		b.WriteString(head)
		head = ""
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, value, cellEscaper.Replace(usage))
	})
}

// cellEscaper escapes a text for a table cell.
var cellEscaper = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")

//go:generate go test -vet=off -run TestCommandReferenceIsCurrent . -update

func TestCommandReferenceIsCurrent(t *testing.T) {
	golden.Check(t, filepath.Join("..", "..", "docs", "reference", "commands.md"), renderReference())
}

func TestCommandReferenceIsMachineIndependent(t *testing.T) {
	t.Setenv("HOME", "/test/home")
	t.Setenv("KUBECACHEDIR", "/test/cache")
	t.Setenv("KUBECONFIG", "/test/kubeconfig")
	t.Setenv("POD_NAMESPACE", "test-value")
	t.Setenv("NODE_NAME", "test-value")
	t.Setenv("TZ", "Asia/Kathmandu")
	page := renderReference()
	for _, value := range []string{"test-value", "/test/", "Kathmandu"} {
		if strings.Contains(page, value) {
			t.Errorf("it contains %s, which depends on the machine", value)
		}
	}
	for flag, value := range machineDependentDefaults { // a test cannot change the host name and the user name
		if value != "" {
			value = "`" + value + "`"
		}
		if !strings.Contains(page, "--"+flag+" string` | "+value+" | ") {
			t.Errorf("the default of --%s is not %s", flag, value)
		}
	}
}

// commandLine matches a slipway command line in a code block, with or without a prompt, or in inline code.
var commandLine = regexp.MustCompile("(?m)^(?: {4}| *(?:\\$|>) )?(?:kubectl[ -])?slipway ([^`\\n]*)$|`slipway ([^`]+)`")

// fencedBlock matches a fenced block of a page and its info string.
var fencedBlock = regexp.MustCompile("(?ms)^ *```([^\n]*)\n.*?^ *```$")

func TestEveryDocumentedCommandLineIsAccepted(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	must.NoError(t, err)
	lines := 0
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		raw, err := os.ReadFile(page)
		must.NoError(t, err)
		for _, m := range commandLine.FindAllStringSubmatch(dropOutputBlocks(string(raw)), -1) {
			lines++
			err := checkCommandLine(m[1] + m[2])
			var bare *pflag.ValueRequiredError
			if m[2] != "" && errors.As(err, &bare) {
				continue // a sentence may mention a flag without its value
			}
			if err != nil {
				t.Errorf("%s: slipway %s: %v", page, m[1]+m[2], err)
			}
		}
	}
	if lines < 50 {
		t.Errorf("found only %d command lines in the documentation", lines)
	}
	for _, wrong := range []string{"plan --no-such-flag", "no-such-command", "doctor -o", "agent --poll-interval soon"} {
		if checkCommandLine(wrong) == nil {
			t.Errorf("slipway %s is accepted", wrong)
		}
	}
}

// dropOutputBlocks removes blocks that show output: blocks without a language and without a prompt.
func dropOutputBlocks(page string) string {
	return fencedBlock.ReplaceAllStringFunc(page, func(block string) string {
		words := fencedBlock.FindStringSubmatch(block)[1]
		if (words == "" || words == "text") && !strings.Contains(block, "\n$ ") {
			return ""
		}
		return block
	})
}

// checkCommandLine returns an error if slipway would refuse the command line, without running it.
func checkCommandLine(line string) error {
	for _, end := range []string{" | ", " > ", " || ", " && ", " # ", "; "} {
		line, _, _ = strings.Cut(line, end)
	}
	words := strings.Fields(strings.NewReplacer(`"`, "", "'", "", `\`, "").Replace(line))
	all := newRootCommand()
	all.InitDefaultCompletionCmd() // Execute adds it
	c, rest, err := all.Find(words)
	if err != nil {
		return err
	}
	if !c.Runnable() && len(rest) > 0 {
		return fmt.Errorf("unknown command %q", rest[0])
	}
	return c.ParseFlags(rest)
}
