package placement_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// maxMethods is the largest number of methods that a type in this package tree may have.
const maxMethods = 40

func TestNoTypeHasTooManyMethods(t *testing.T) {
	methods := map[string]int{}
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[filepath.Dir(path)+"."+receiverTypeName(f.Recv.List[0].Type)]++
			}
		}
		return nil
	})
	must.Not(t, err != nil || methods["snapshot.Snapshot"] == 0, "methods of the snapshot: %d, %v", methods["snapshot.Snapshot"], err)
	for name, n := range methods {
		check.Not(t, n > maxMethods, "%s has %d methods, at most %d are allowed: make functions of them, or give a part its own type", name, n, maxMethods)
	}
}

func receiverTypeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiverTypeName(e.X)
	case *ast.IndexExpr:
		return receiverTypeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
