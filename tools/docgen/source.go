package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const modulePath = "github.com/slipway-dev/slipway/"

// source is the parsed source of a package, without tests.
type source struct {
	path   string // within the module
	files  []*ast.File
	cached []constant // result of constants
}

// allSources returns all packages of the programs by path, without packages that only serve tests and pages.
var allSources = sync.OnceValue(func() map[string]*source {
	all := map[string]*source{}
	for _, root := range []string{"api", "cmd", "internal", "plugin"} {
		must(filepath.WalkDir(repositoryPath(root), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			path := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(file)), "../../")
			if all[path] == nil {
				all[path] = &source{path: path}
			}
			all[path].files = append(all[path].files, parsed)
			return nil
		}))
	}
	for _, notLinked := range []string{
		"internal/placement/placementtest", "internal/cloud/plugin/faultyplugintest", "internal/cloud/conformance", "plugin/plugintest",
	} {
		delete(all, notLinked)
	}
	return all
})

func findSource(path string) *source {
	s := allSources()[path]
	if s == nil {
		failf("there is no package %s", path)
	}
	return s
}

// visitNodes visits every node of every file.
func (s *source) visitNodes(visit func(ast.Node)) {
	for _, f := range s.files {
		ast.Inspect(f, func(n ast.Node) bool {
			if n != nil {
				visit(n)
			}
			return true
		})
	}
}

// constant is a string constant with its comment.
type constant struct {
	name, typeName, value, doc string
	group                      string // comment of its block
	from                       string // the constant of another package that defines the value
}

// constants returns the constants with a literal string value or a conversion of one, in source order. It is not safe
// for concurrent use.
func (s *source) constants() []constant {
	if s.cached != nil {
		return s.cached
	}
	all := []constant{}
	s.visitNodes(func(n ast.Node) {
		block, ok := n.(*ast.GenDecl)
		if !ok || block.Tok != token.CONST {
			return
		}
		for _, spec := range block.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for i, name := range v.Names {
				if i >= len(v.Values) {
					continue
				}
				c := constant{name: name.Name, doc: firstComment(v.Doc, v.Comment), group: firstComment(block.Doc)}
				if of, ok := v.Type.(*ast.Ident); ok {
					c.typeName = of.Name
				}
				if text, ok := stringValue(v.Values[i]); ok {
					c.value = text
				} else if of, ok := v.Values[i].(*ast.SelectorExpr); ok {
					c.from = formatCallee(of)
				} else {
					continue
				}
				all = append(all, c)
			}
		}
	})
	s.cached = all
	return all
}

// namedConstants returns the values of constants in the order of the names.
func namedConstants(path string, names ...string) []string {
	byName := map[string]string{}
	for _, c := range findSource(path).constants() {
		byName[c.name] = c.value
	}
	var values []string
	for _, name := range names {
		if byName[name] == "" {
			failf("package %s has no constant %s", path, name)
		}
		values = append(values, byName[name])
	}
	return values
}

// constantBlock returns the constants of a block, found by the beginning of its comment.
func constantBlock(path, commentPrefix string) []constant {
	var all []constant
	for _, c := range findSource(path).constants() {
		if strings.HasPrefix(c.group, commentPrefix) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		failf("package %s has no constants under the comment %q", path, commentPrefix)
	}
	return all
}

// findFunctions returns the declarations of functions or methods by name.
func (s *source) findFunctions(names ...string) (found []ast.Node) {
	s.visitNodes(func(n ast.Node) {
		if f, ok := n.(*ast.FuncDecl); ok && slices.Contains(names, f.Name.Name) && f.Body != nil {
			found = append(found, f)
		}
	})
	if len(found) < len(names) {
		failf("package %s lacks some of the functions %v", s.path, names)
	}
	return found
}

// findStrings returns the strings among the expressions that pick selects below nodes.
func findStrings(nodes []ast.Node, pick func(ast.Node) []ast.Expr) (values []string) {
	for _, below := range nodes {
		ast.Inspect(below, func(n ast.Node) bool {
			for _, e := range pick(n) {
				if text, ok := stringValue(e); ok {
					values = append(values, text)
				}
			}
			return true
		})
	}
	if len(values) == 0 {
		failf("no strings found at the expected place")
	}
	return sortUnique(values)
}

// returnedStrings returns the strings that functions return as their last result.
func returnedStrings(path string, functions ...string) []string {
	return findStrings(findSource(path).findFunctions(functions...), func(n ast.Node) []ast.Expr {
		if r, ok := n.(*ast.ReturnStmt); ok && len(r.Results) > 0 {
			return r.Results[len(r.Results)-1:]
		}
		return nil
	})
}

// assignedStrings returns the strings that a function assigns to a variable.
func assignedStrings(path, function, variable string) []string {
	return findStrings(findSource(path).findFunctions(function), func(n ast.Node) (values []ast.Expr) {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, to := range a.Lhs {
				if formatCallee(to) == variable {
					values = append(values, a.Rhs[i])
				}
			}
		}
		return values
	})
}

// argumentStrings returns the strings that a package passes to functions or methods of a name, at an argument position.
func argumentStrings(path, called string, at int) []string {
	var files []ast.Node
	for _, f := range findSource(path).files {
		files = append(files, f)
	}
	return findStrings(files, func(n ast.Node) []ast.Expr {
		if c, ok := n.(*ast.CallExpr); ok && at < len(c.Args) && strings.HasSuffix("."+formatCallee(c.Fun), "."+called) {
			return c.Args[at : at+1]
		}
		return nil
	})
}

// stringMapKeys returns the string keys of maps in a function.
func stringMapKeys(path, function string) []string {
	return findStrings(findSource(path).findFunctions(function), func(n ast.Node) (keys []ast.Expr) {
		literal, ok := n.(*ast.CompositeLit)
		if !ok {
			return nil
		}
		if _, ok := literal.Type.(*ast.MapType); !ok {
			return nil // such as prometheus.Labels, with keys that are not values
		}
		for _, e := range literal.Elts {
			if kv, ok := e.(*ast.KeyValueExpr); ok {
				keys = append(keys, kv.Key)
			}
		}
		return keys
	})
}

// listElements returns the elements of the list that initializes a package variable.
func listElements(path, variable string) (elements []ast.Expr) {
	findSource(path).visitNodes(func(n ast.Node) {
		if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == variable && len(v.Values) == 1 {
			if list, ok := v.Values[0].(*ast.CompositeLit); ok {
				elements = list.Elts
			}
		}
	})
	if len(elements) == 0 {
		failf("package %s has no list %s", path, variable)
	}
	return elements
}

// formatCallee returns the call expression of a function, such as m.pods.With.
func formatCallee(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return formatCallee(e.X) + "." + e.Sel.Name
	}
	return ""
}

// constantsOfType returns the values of the constants of a type.
func constantsOfType(path, name string) []string {
	var values []string
	for _, c := range findSource(path).constants() {
		if c.typeName == name && c.value != "" {
			values = append(values, c.value)
		}
	}
	if len(values) == 0 {
		failf("package %s has no constants of a type %s", path, name)
	}
	return values
}

// stringValue returns the string value of an expression.
func stringValue(e ast.Expr) (value string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, err := strconv.Unquote(e.Value)
			return text, err == nil
		}
	case *ast.CallExpr:
		if of, ok := e.Fun.(*ast.Ident); ok && len(e.Args) == 1 && ast.IsExported(of.Name) {
			return stringValue(e.Args[0])
		}
	}
	return "", false
}

func firstComment(groups ...*ast.CommentGroup) string {
	for _, g := range groups {
		if text := strings.TrimSpace(g.Text()); text != "" {
			return text
		}
	}
	return ""
}

// findDeclaration returns the declaration of a type, and its comment.
func findDeclaration(of reflect.Type) (found *ast.TypeSpec, doc string) {
	findSource(strings.TrimPrefix(of.PkgPath(), modulePath)).visitNodes(func(n ast.Node) {
		block, ok := n.(*ast.GenDecl)
		if !ok {
			return
		}
		for _, spec := range block.Specs {
			if spec, ok := spec.(*ast.TypeSpec); ok && spec.Name.Name == of.Name() {
				found, doc = spec, firstComment(spec.Doc, block.Doc)
			}
		}
	})
	return found, doc
}

// fieldDocs returns the comments of a struct's fields by name.
func fieldDocs(of reflect.Type) map[string]string {
	docs := map[string]string{}
	spec, _ := findDeclaration(of)
	if body, ok := spec.Type.(*ast.StructType); ok {
		for _, f := range body.Fields.List {
			for _, name := range f.Names {
				docs[name.Name] = firstComment(f.Doc, f.Comment)
			}
		}
	}
	return docs
}

// adaptComment adapts a field's comment for users of the file: it replaces field names by keys, and removes Go's brackets. A
// word that is also a field name is replaced only if no other word would be capitalized there.
func adaptComment(doc, field string, keys map[string]string) string {
	doc = goReference.ReplaceAllString(strings.Join(strings.Fields(doc), " "), "")
	doc = goLink.ReplaceAllString(doc, "$1")
	doc = strings.ReplaceAll(doc, "Config.", "")
	var b strings.Builder
	at := 0
	for _, w := range words.FindAllStringIndex(doc, -1) {
		word, before := doc[w[0]:w[1]], doc[:w[0]]
		b.WriteString(doc[at:w[0]])
		at = w[1]
		begins := w[0] == 0 || strings.HasSuffix(before, ". ") && word == field
		if key := keys[word]; key != "" && !strings.HasSuffix(before, ".") && (begins || camelCase.MatchString(word)) {
			word = "`" + key + "`"
		}
		b.WriteString(word)
	}
	return b.String() + doc[at:]
}

var (
	// goReference matches references for readers of the Go code.
	goReference = regexp.MustCompile(`; see \[[A-Za-z.]+\]| \(\[[A-Za-z.]+\]\)`)
	goLink      = regexp.MustCompile(`\[([A-Za-z.]+)\]`)
	words       = regexp.MustCompile(`[A-Za-z]+`)
	camelCase   = regexp.MustCompile(`[a-zA-Z][A-Z]`)
)

// formatList formats values for a table cell.
func formatList(values []string) string {
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

// sortUnique returns the values sorted and without duplicates.
func sortUnique(values []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}

// cellEscaper escapes text for a table cell, and keeps text that looks like HTML visible.
var cellEscaper = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")
