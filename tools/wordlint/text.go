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

// marker is a line of a comment that a tool reads, such as +kubebuilder:validation.
var marker = regexp.MustCompile(`(?m)^\+.*$`)

// kind says where a text stands.
type kind string

const (
	comment     kind = "comment"
	testComment kind = "comment of test"
	paragraph   kind = "paragraph"
	message     kind = "message"
	identifier  kind = "identifier"
)

// text is a block of language in a file.
type text struct {
	kind kind
	line int
	text string
}

// readTexts returns the blocks of language of a Go or Markdown file. Generated files have none.
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

// markdownParagraphs returns the paragraphs and list items of a Markdown page. Code, tables and headings are left out.
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
