// Package site checks the repository's Markdown without building its web site.
package site

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// index is the page whose headings and links are the navigation of the web site.
const index = "docs/README.md"

type page struct {
	path     string // in the repository, with slashes
	links    []string
	anchors  map[string]bool
	levels   []int // of the headings, in order
	problems []error
}

// repository holds by path the Markdown that users read.
type repository struct {
	root  string
	pages map[string]*page
}

func readRepository(root string) (*repository, error) {
	r := &repository{root: root, pages: map[string]*page{}}
	top, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		return nil, err
	}
	files := top
	for _, folder := range []string{"docs", "charts", "deploy", "examples"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(file string, _ fs.DirEntry, err error) error {
			if filepath.Ext(file) == ".md" {
				files = append(files, file)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(root, file)
		if err != nil {
			return nil, err
		}
		name = filepath.ToSlash(name)
		r.pages[name] = parsePage(name, raw)
	}
	return r, nil
}

var htmlLink = regexp.MustCompile(`(?:src|srcset|href)="([^"]*)"`)

func parsePage(name string, raw []byte) *page {
	p := &page{path: name, anchors: map[string]bool{}}
	tree := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(raw))
	_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it returns the callback's error, which is nil
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.Heading:
			p.levels = append(p.levels, n.Level)
			p.addAnchor(slugify(plainText(n, raw)))
		case *ast.Link:
			p.links = append(p.links, string(n.Destination))
		case *ast.Image:
			p.links = append(p.links, string(n.Destination))
			if plainText(n, raw) == "" {
				p.problems = append(p.problems, fmt.Errorf("%s: image %s has no alternative text", name, n.Destination))
			}
		case *ast.HTMLBlock:
			var block strings.Builder
			for i := range n.Lines().Len() {
				line := n.Lines().At(i)
				block.Write(line.Value(raw))
			}
			for _, m := range htmlLink.FindAllStringSubmatch(block.String(), -1) {
				p.links = append(p.links, m[1])
			}
		}
		return ast.WalkContinue, nil
	})
	return p
}

func plainText(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

// slugify returns the anchor that code hosts give to a heading. site/.vitepress/content.mjs has the same rule.
func slugify(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.In(r, unicode.L, unicode.N, unicode.M), r == '-', r == '_':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, strings.TrimSpace(heading))
}

// addAnchor numbers repeated anchors as code hosts do.
func (p *page) addAnchor(id string) {
	unique := id
	for i := 1; p.anchors[unique]; i++ {
		unique = fmt.Sprintf("%s-%d", id, i)
	}
	p.anchors[unique] = true
}

// check returns the faults of all pages.
func (r *repository) check() error {
	var problems []error
	for _, p := range r.pages {
		problems = append(problems, p.problems...)
		for _, link := range p.links {
			if err := r.checkLink(p, link); err != nil {
				problems = append(problems, fmt.Errorf("%s: link to %s: %w", p.path, link, err))
			}
		}
		for i, level := range p.levels {
			switch {
			case i == 0 && level != 1:
				problems = append(problems, fmt.Errorf("%s: the first heading has level %d, want 1", p.path, level))
			case i > 0 && level == 1:
				problems = append(problems, fmt.Errorf("%s has two headings of level 1", p.path))
			case i > 0 && level > p.levels[i-1]+1:
				problems = append(problems, fmt.Errorf("%s: heading %d has level %d below level %d", p.path, i+1, level, p.levels[i-1]))
			}
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(problems...)
}

// target returns the path in the repository that a link leads to, and false for other links.
func (p *page) target(link string) (string, string, bool) {
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "" || u.Host != "" {
		return "", "", false
	}
	if u.Path == "" {
		return p.path, u.Fragment, true
	}
	return path.Join(path.Dir(p.path), u.Path), u.Fragment, true
}

func (r *repository) checkLink(p *page, link string) error {
	if _, err := url.Parse(link); err != nil {
		return err
	}
	at, fragment, inside := p.target(link)
	if !inside {
		return nil // tests send no requests to other hosts
	}
	if strings.HasPrefix(at, "..") || strings.HasPrefix(link, "/") {
		return errors.New("the path is outside the repository")
	}
	if to := r.pages[at]; to != nil {
		if fragment != "" && !to.anchors[fragment] {
			return fmt.Errorf("%s has no heading #%s", at, fragment)
		}
		return nil
	}
	if _, err := os.Stat(filepath.Join(r.root, filepath.FromSlash(at))); err != nil {
		return errors.New("no such page or file")
	}
	return nil
}

func TestMarkdownHasNoDeadLinkOrSkippedHeading(t *testing.T) {
	r, err := readRepository(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(); err != nil {
		t.Error(err)
	}
	if len(r.pages) < 50 {
		t.Errorf("only %d pages were found", len(r.pages))
	}
}

func TestIndexLinksToEveryPageOfDocs(t *testing.T) {
	r, err := readRepository(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	linked := map[string]bool{index: true}
	for _, link := range r.pages[index].links {
		at, _, _ := r.pages[index].target(link)
		linked[at] = true
	}
	for name := range r.pages {
		if strings.HasPrefix(name, "docs/") && !strings.HasPrefix(name, "docs/adr/") && !linked[name] {
			t.Errorf("%s has no link to %s, so the web site's navigation does not show it", index, name)
		}
	}
}

func TestFaultsOfMarkdownAreReported(t *testing.T) {
	for markdown, want := range map[string]string{
		"# A\n\n[x](b.md)":                                "docs/a.md: link to b.md: no such page or file",
		"# A\n\n[x](a.md#nothing)":                        "docs/a.md: link to a.md#nothing: docs/a.md has no heading #nothing",
		"# A\n\n[x](#nothing)":                            "docs/a.md has no heading #nothing",
		"# A\n\n[x](../../etc)":                           "the path is outside the repository",
		"# A\n\n[x](/etc/passwd)":                         "the path is outside the repository",
		"# A\n\n[x](../none.go)":                          "no such page or file",
		"# A\n\n<picture>\n<img src=\"x.svg\">":           "link to x.svg: no such page or file",
		"# A\n\n![](a.md)":                                "image a.md has no alternative text",
		"# A\n\n### B":                                    "heading 2 has level 3 below level 1",
		"## A":                                            "the first heading has level 2, want 1",
		"# A\n\n# B":                                      "docs/a.md has two headings of level 1",
		"# A\n\n[x](#two-words-1)\n\n## Two words":        "docs/a.md has no heading #two-words-1",
		"# A\n\n[x](#a-b_c-d)\n\n## A.B_`C`: d":           "docs/a.md has no heading #a-b_c-d",
		"# A\n\n[x](#two-1)\n\n## Two\n\n## Two":          "",
		"# A\n\n[x](#ab_c-d)\n\n## A.B_`C`: d":            "",
		"# A\n\n[x](../Makefile) [y](https://e.org/b.md)": "",
	} {
		root := t.TempDir()
		for name, text := range map[string]string{"docs/a.md": markdown, "Makefile": ""} {
			file := filepath.Join(root, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r, err := readRepository(root)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.check(); fmt.Sprint(err) == "<nil>" != (want == "") || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%q: %v, want %q", markdown, err, want)
		}
	}
}

// isDrawnFrom reports whether tools/diagrams/draw has drawn the picture from the source, and whether it is unchanged since. It
// compares a hash, because compiling D2 takes a minute.
func isDrawnFrom(source, picture []byte) bool {
	drawn, last, found := bytes.Cut(picture, []byte("<!-- sha256 "))
	sum := sha256.Sum256(slices.Concat(source, drawn))
	return found && string(last) == fmt.Sprintf("%x -->\n", sum)
}

func TestPicturesAreDrawnFromTheirSources(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join("..", "..", "docs", "images", "*.d2"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("%d sources of pictures: %v", len(sources), err)
	}
	for _, source := range sources {
		raw, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, theme := range []string{"-light.svg", "-dark.svg"} {
			picture := strings.TrimSuffix(source, ".d2") + theme
			drawn, err := os.ReadFile(picture)
			if err != nil || !isDrawnFrom(raw, drawn) {
				t.Errorf("%s is not drawn from %s, or has been changed: run make diagrams (%v)", picture, source, err)
			}
			if isDrawnFrom(raw, bytes.Replace(drawn, []byte("<rect "), []byte("<rect  "), 1)) {
				t.Errorf("a change of %s is not noticed", picture)
			}
		}
	}
}
