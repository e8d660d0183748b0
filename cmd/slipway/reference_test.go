package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// reference is every command with its flags, as Markdown.
func reference() string {
	var b strings.Builder
	b.WriteString("# Commands\n\nEvery command of `slipway` and its flags, as the program itself has them.\n")
	all := root()
	forgetMachine(all)
	each(all, func(c *cobra.Command) {
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
		flagTable(&b, c)
	})
	return b.String()
}

// each visits a command and all below it that are not hidden.
func each(c *cobra.Command, visit func(*cobra.Command)) {
	visit(c)
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			each(sub, visit)
		}
	}
}

func flagTable(b *strings.Builder, c *cobra.Command) {
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
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", name, value, inCell.Replace(usage))
	})
}

// inCell keeps a text within the cell of a table, and what looks like HTML visible.
var inCell = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")

//go:generate go test -vet=off -run TestTheReferenceOfCommandsIsCurrent . -update

func TestTheReferenceOfCommandsIsCurrent(t *testing.T) {
	golden.Check(t, filepath.Join("..", "..", "docs", "reference", "commands.md"), reference())
}

func TestCommandReferenceIsTheSameOnEveryMachine(t *testing.T) {
	t.Setenv("HOME", "/of/somebody")
	t.Setenv("KUBECACHEDIR", "/of/somebody/else")
	t.Setenv("KUBECONFIG", "/of/nobody")
	t.Setenv("POD_NAMESPACE", "of-somebody")
	t.Setenv("NODE_NAME", "of-somebody")
	t.Setenv("TZ", "Asia/Kathmandu")
	page := reference()
	for _, own := range []string{"of-somebody", "/of/", "Kathmandu"} {
		if strings.Contains(page, own) {
			t.Errorf("it has %s, which is of the machine", own)
		}
	}
	for flag, value := range ofTheMachine { // some cannot be changed for a test: a host's and a user's name
		if value != "" {
			value = "`" + value + "`"
		}
		if !strings.Contains(page, "--"+flag+" string` | "+value+" | ") {
			t.Errorf("the default of --%s is not %s", flag, value)
		}
	}
}

// typed is a line of a page that has somebody run slipway, in an indented or fenced block, after a prompt or without, or the
// like within a sentence.
var typed = regexp.MustCompile("(?m)^(?: {4}| *(?:\\$|>) )?(?:kubectl[ -])?slipway ([^`\\n]*)$|`slipway ([^`]+)`")

// fenced is a block of a page, with the words after its fence.
var fenced = regexp.MustCompile("(?ms)^ *```([^\n]*)\n.*?^ *```$")

func TestEveryDocumentedCommandLineIsAccepted(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	must.NoError(t, err)
	lines := 0
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		raw, err := os.ReadFile(page)
		must.NoError(t, err)
		for _, m := range typed.FindAllStringSubmatch(promptless(string(raw)), -1) {
			lines++
			err := taken(m[1] + m[2])
			var bare *pflag.ValueRequiredError
			if m[2] != "" && errors.As(err, &bare) {
				continue // a sentence may speak of a flag without its value
			}
			if err != nil {
				t.Errorf("%s: slipway %s: %v", page, m[1]+m[2], err)
			}
		}
	}
	if lines < 50 {
		t.Errorf("%d command lines were found in the documentation: it has more", lines)
	}
	for _, wrong := range []string{"plan --no-such-flag", "no-such-command", "doctor -o", "agent --poll-interval soon"} {
		if taken(wrong) == nil {
			t.Errorf("slipway %s is taken", wrong)
		}
	}
}

// promptless leaves out the blocks that show an answer: those without a language and without a prompt.
func promptless(page string) string {
	return fenced.ReplaceAllStringFunc(page, func(block string) string {
		words := fenced.FindStringSubmatch(block)[1]
		if (words == "" || words == "text") && !strings.Contains(block, "\n$ ") {
			return ""
		}
		return block
	})
}

// taken says why slipway would not take the words of a line of a shell, as far as that shows without running it.
func taken(line string) error {
	for _, end := range []string{" | ", " > ", " || ", " && ", " # ", "; "} {
		line, _, _ = strings.Cut(line, end)
	}
	words := strings.Fields(strings.NewReplacer(`"`, "", "'", "", `\`, "").Replace(line))
	all := root()
	all.InitDefaultCompletionCmd() // which it has when it runs
	c, rest, err := all.Find(words)
	if err != nil {
		return err
	}
	if !c.Runnable() && len(rest) > 0 {
		return fmt.Errorf("there is no command %q", rest[0])
	}
	return c.ParseFlags(rest)
}
