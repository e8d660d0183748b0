package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const modulePath = "github.com/slipway-dev/slipway/"

// repository is a path in the repository, from its root.
func repository(path string) string { return filepath.Join("..", "..", filepath.FromSlash(path)) }

// current holds a page of docs/reference to what it is made of, or writes it.
func current(t *testing.T, name, got string) {
	t.Helper()
	page := repository("docs/reference/" + name)
	if *update {
		if err := os.WriteFile(page, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got, -update writes it anew):\n%s", page, diff)
	}
}

// source is a package of the module as it is written, without its tests.
type source struct {
	path  string // within the module
	files []*ast.File
	known []constant // what constants has found
}

// sources are the packages that programs are made of, by their paths. What serves tests alone is no part of them.
var sources = sync.OnceValues(func() (map[string]*source, error) {
	all := map[string]*source{}
	for _, root := range []string{"api", "cmd", "internal", "plugin"} {
		err := filepath.WalkDir(repository(root), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			within, err := filepath.Rel(repository("."), filepath.Dir(file))
			if err != nil {
				return err
			}
			path := filepath.ToSlash(within)
			if all[path] == nil {
				all[path] = &source{path: path}
			}
			all[path].files = append(all[path].files, parsed)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for _, forTests := range []string{"internal/placement/placementtest", "internal/cloud/plugin/saboteur", "internal/cloud/conformance", "plugin/plugintest"} {
		delete(all, forTests)
	}
	return all, nil
})

func everySource(t *testing.T) map[string]*source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sourceOf(t *testing.T, path string) *source {
	t.Helper()
	s := everySource(t)[path]
	if s == nil {
		t.Fatalf("there is no package %s", path)
	}
	return s
}

// each visits every node of every file.
func (s *source) each(visit func(ast.Node)) {
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				visit(n)
			}
			return true
		})
	}
}

// constant is a constant text, and what its comment says.
type constant struct {
	name, of, value, doc string
	group                string // the comment of the block that it is in
	from                 string // another package's constant whose value it has, instead of its own
}

// constants are those whose value is written as a text, also as a conversion of one, in the order in which they are. It is for one
// goroutine at a time.
func (s *source) constants() []constant {
	if s.known != nil {
		return s.known
	}
	all := []constant{}
	s.each(func(n ast.Node) {
		block, is := n.(*ast.GenDecl)
		if !is || block.Tok != token.CONST {
			return
		}
		for _, spec := range block.Specs {
			v, is := spec.(*ast.ValueSpec)
			if !is {
				continue
			}
			for i, name := range v.Names {
				if i >= len(v.Values) {
					continue
				}
				c := constant{name: name.Name, doc: comment(v.Doc, v.Comment), group: comment(block.Doc)}
				if of, is := v.Type.(*ast.Ident); is {
					c.of = of.Name
				}
				if text, is := textOf(v.Values[i]); is {
					c.value = text
				} else if of, is := v.Values[i].(*ast.SelectorExpr); is {
					c.from = spelt(of)
				} else {
					continue
				}
				all = append(all, c)
			}
		}
	})
	s.known = all
	return all
}

// namedConstants are the values of constants by their names, in the order in which they are asked for.
func namedConstants(t *testing.T, path string, names ...string) []string {
	t.Helper()
	byName := map[string]string{}
	for _, c := range sourceOf(t, path).constants() {
		byName[c.name] = c.value
	}
	var values []string
	for _, name := range names {
		if byName[name] == "" {
			t.Fatalf("package %s has no constant %s", path, name)
		}
		values = append(values, byName[name])
	}
	return values
}

// blockOf are the constants of a block, by how its comment begins.
func blockOf(t *testing.T, path, begins string) []constant {
	t.Helper()
	var all []constant
	for _, c := range sourceOf(t, path).constants() {
		if strings.HasPrefix(c.group, begins) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		t.Fatalf("package %s has no constants under the comment %q", path, begins)
	}
	return all
}

// function is the body of a function or method by its name.
func (s *source) function(t *testing.T, name string) *ast.FuncDecl {
	t.Helper()
	var found *ast.FuncDecl
	s.each(func(n ast.Node) {
		if f, is := n.(*ast.FuncDecl); is && f.Name.Name == name && f.Body != nil {
			found = f
		}
	})
	if found == nil {
		t.Fatalf("package %s has no function %s", s.path, name)
	}
	return found
}

// returned are the texts that functions return as their last result.
func returned(t *testing.T, path string, functions ...string) (values []string) {
	t.Helper()
	for _, name := range functions {
		ast.Inspect(sourceOf(t, path).function(t, name), func(n ast.Node) bool {
			if r, is := n.(*ast.ReturnStmt); is && len(r.Results) > 0 {
				if text, is := textOf(r.Results[len(r.Results)-1]); is {
					values = append(values, text)
				}
			}
			return true
		})
	}
	return wanted(t, path, values)
}

// assigned are the texts that a function assigns to a variable.
func assigned(t *testing.T, path, function, variable string) (values []string) {
	t.Helper()
	ast.Inspect(sourceOf(t, path).function(t, function), func(n ast.Node) bool {
		if a, is := n.(*ast.AssignStmt); is {
			for i, to := range a.Lhs {
				if id, is := to.(*ast.Ident); is && id.Name == variable && i < len(a.Rhs) {
					if text, is := textOf(a.Rhs[i]); is {
						values = append(values, text)
					}
				}
			}
		}
		return true
	})
	return wanted(t, path, values)
}

// given are the texts that a package gives to functions and methods of a name, at a place.
func given(t *testing.T, path, called string, at int) (values []string) {
	t.Helper()
	sourceOf(t, path).each(func(n ast.Node) {
		if c, is := n.(*ast.CallExpr); is && at < len(c.Args) && strings.HasSuffix("."+spelt(c.Fun), "."+called) {
			if text, is := textOf(c.Args[at]); is {
				values = append(values, text)
			}
		}
	})
	return wanted(t, path, values)
}

// mapKeys are the texts that are keys of maps in a function.
func mapKeys(t *testing.T, path, function string) (values []string) {
	t.Helper()
	ast.Inspect(sourceOf(t, path).function(t, function), func(n ast.Node) bool {
		literal, is := n.(*ast.CompositeLit)
		if !is {
			return true
		}
		if _, is := literal.Type.(*ast.MapType); !is {
			return true // such as prometheus.Labels, whose keys are no values
		}
		for _, e := range literal.Elts {
			if kv, is := e.(*ast.KeyValueExpr); is {
				if text, is := textOf(kv.Key); is {
					values = append(values, text)
				}
			}
		}
		return true
	})
	return wanted(t, path, values)
}

func wanted(t *testing.T, path string, values []string) []string {
	t.Helper()
	if len(values) == 0 {
		t.Errorf("package %s: no values are found where they were", path)
	}
	return sorted(values)
}

// spelt is how a function is called, such as m.pods.With.
func spelt(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return spelt(e.X) + "." + e.Sel.Name
	}
	return ""
}

// constantsOf are the values of the constants of a type.
func constantsOf(t *testing.T, path, name string) []string {
	t.Helper()
	var values []string
	for _, c := range sourceOf(t, path).constants() {
		if c.of == name && c.value != "" {
			values = append(values, c.value)
		}
	}
	if len(values) == 0 {
		t.Fatalf("package %s has no constants of a type %s", path, name)
	}
	return values
}

// textOf is the text that an expression is written as.
func textOf(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.CallExpr:
		if of, is := e.Fun.(*ast.Ident); is && len(e.Args) == 1 && ast.IsExported(of.Name) {
			return textOf(e.Args[0])
		}
	}
	return "", false
}

func comment(groups ...*ast.CommentGroup) string {
	for _, g := range groups {
		if text := strings.TrimSpace(g.Text()); text != "" {
			return text
		}
	}
	return ""
}

// docsOf are the comments of a struct's fields, by their names.
func docsOf(t *testing.T, of reflect.Type) map[string]string {
	t.Helper()
	docs := map[string]string{}
	sourceOf(t, strings.TrimPrefix(of.PkgPath(), modulePath)).each(func(n ast.Node) {
		spec, is := n.(*ast.TypeSpec)
		if !is || spec.Name.Name != of.Name() {
			return
		}
		body, is := spec.Type.(*ast.StructType)
		if !is {
			return
		}
		for _, f := range body.Fields.List {
			for _, name := range f.Names {
				docs[name.Name] = comment(f.Doc, f.Comment)
			}
		}
	})
	return docs
}

// docOf is the comment of a type.
func docOf(t *testing.T, of reflect.Type) (doc string) {
	t.Helper()
	if of == nil {
		return ""
	}
	sourceOf(t, strings.TrimPrefix(of.PkgPath(), modulePath)).each(func(n ast.Node) {
		block, is := n.(*ast.GenDecl)
		if !is || block.Tok != token.TYPE {
			return
		}
		for _, spec := range block.Specs {
			if spec, is := spec.(*ast.TypeSpec); is && spec.Name.Name == of.Name() {
				doc = comment(spec.Doc, block.Doc)
			}
		}
	})
	return doc
}

// inText makes the comment of a field one for people who write a file: of fields it has their keys, and no brackets of Go's. A
// word that is the name of a field and of something else is taken for the field's where no other word would stand in capitals.
func inText(doc, field string, keys map[string]string) string {
	doc = aside.ReplaceAllString(strings.Join(strings.Fields(doc), " "), "")
	doc = linkOfGo.ReplaceAllString(doc, "$1")
	doc = strings.ReplaceAll(doc, "Config.", "")
	var b strings.Builder
	at := 0
	for _, w := range words.FindAllStringIndex(doc, -1) {
		word, before := doc[w[0]:w[1]], doc[:w[0]]
		b.WriteString(doc[at:w[0]])
		at = w[1]
		begins := w[0] == 0 || strings.HasSuffix(before, ". ") && word == field
		if key := keys[word]; key != "" && !strings.HasSuffix(before, ".") && (begins || humped.MatchString(word)) {
			word = "`" + key + "`"
		}
		b.WriteString(word)
	}
	return b.String() + doc[at:]
}

var (
	// aside is what leads a reader of Go elsewhere.
	aside    = regexp.MustCompile(`; see \[[A-Za-z.]+\]| \(\[[A-Za-z.]+\]\)`)
	linkOfGo = regexp.MustCompile(`\[([A-Za-z.]+)\]`)
	words    = regexp.MustCompile(`[A-Za-z]+`)
	humped   = regexp.MustCompile(`[a-zA-Z][A-Z]`)
)

// listed are some values, for a cell.
func listed(values []string) string {
	quoted := make([]string, 0, len(values))
	for _, v := range values {
		if v == "" {
			quoted = append(quoted, "empty")
			continue
		}
		quoted = append(quoted, "`"+v+"`")
	}
	return strings.Join(quoted, ", ")
}

// sorted are some values, each once.
func sorted(values []string) []string { return slices.Compact(slices.Sorted(slices.Values(values))) }
