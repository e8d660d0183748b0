package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// marker matches a comment line that is for a tool, such as +kubebuilder:validation.
var marker = regexp.MustCompile(`(?m)^\+.*$`)

// kind tells what a text is, such as a comment or a message.
type kind string

const (
	comment     kind = "comment"
	testComment kind = "comment of test"
	paragraph   kind = "paragraph"
	message     kind = "message"
	identifier  kind = "identifier"
)

// text is a piece of natural language in a file, such as one comment, with its line number.
type text struct {
	kind kind
	line int
	text string
}

// readTexts returns the texts in a Go or Markdown file. It returns none for a generated file.
func readTexts(root, name string) ([]text, error) {
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return nil, err
	}
	if strings.HasSuffix(name, ".md") {
		return markdownParagraphs(string(b)), nil
	}
	return goTexts(name, b)
}

func goTexts(name string, source []byte) ([]text, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, name, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	if ast.IsGenerated(f) {
		return nil, nil
	}
	kindOfComments := comment
	if strings.HasSuffix(name, "_test.go") {
		kindOfComments = testComment
	}
	var texts []text
	add := func(k kind, at token.Pos, s string) { texts = append(texts, text{k, files.Position(at).Line, s}) }
	for _, group := range f.Comments {
		add(kindOfComments, group.Pos(), strings.Join(strings.Fields(marker.ReplaceAllString(group.Text(), "")), " "))
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil && strings.Contains(s, " ") {
				add(message, n.Pos(), s)
			}
		case *ast.FuncDecl:
			add(identifier, n.Pos(), n.Name.Name)
		case *ast.TypeSpec:
			add(identifier, n.Pos(), n.Name.Name)
		case *ast.ValueSpec:
			for _, i := range n.Names {
				add(identifier, i.Pos(), i.Name)
			}
		case *ast.Field:
			for _, i := range n.Names {
				add(identifier, i.Pos(), i.Name)
			}
		}
		return true
	})
	return texts, nil
}

// markdownParagraphs returns the paragraphs and list items of a Markdown page. It leaves out code, tables and
// headings.
func markdownParagraphs(page string) []text {
	var texts []text
	var block []string
	start, inCode := 0, false
	end := func() {
		if len(block) > 0 {
			texts = append(texts, text{paragraph, start, strings.Join(block, " ")})
		}
		block = nil
	}
	for i, line := range strings.Split(page, "\n") {
		line = strings.TrimSpace(line)
		fence := strings.HasPrefix(line, "```")
		if fence {
			inCode = !inCode
		}
		if fence || inCode || line == "" || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#") {
			end()
			continue
		}
		if strings.HasPrefix(line, "- ") {
			end()
		}
		if len(block) == 0 {
			start = i + 1
		}
		block = append(block, line)
	}
	end()
	return texts
}
