// Package site builds a web site of the Markdown in docs/ for offline reading. Every page is one file with its own
// style, and all linked files are included.
package site

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// SourceURL is the address of repository files that are not pages.
const SourceURL = "https://github.com/slipway-dev/slipway/blob/main/"

const docsDir = "docs"

// page is a Markdown file of docs/.
type page struct {
	path    string // within docs/, with slashes
	title   string
	source  []byte
	tree    ast.Node
	anchors map[string]bool
}

// site is all pages by path.
type site struct {
	root  string // of the repository
	pages map[string]*page
	// files of docs/ that are not pages, but may be linked.
	files map[string]bool
	order []indexedPage
}

var markdown = goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithParserOptions(parser.WithAutoHeadingID()))

// BuildSite builds the site of the repository at root into the new folder to. A link to a missing page, heading or file is
// an error. Build reports all broken links with their pages, and then writes nothing.
func BuildSite(root, to string) error {
	s, err := readSite(root)
	if err != nil {
		return err
	}
	var broken []error
	for _, name := range s.pageNames() {
		broken = append(broken, s.rewriteLinks(s.pages[name]))
	}
	if err := errors.Join(broken...); err != nil {
		return err
	}
	return s.writeSite(to)
}

func readSite(root string) (*site, error) {
	s := &site{root: root, pages: map[string]*page{}, files: map[string]bool{}}
	from := os.DirFS(filepath.Join(root, docsDir))
	err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if path.Ext(name) != ".md" {
			s.files[name] = true
			return nil
		}
		raw, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		s.pages[name] = parsePage(name, raw)
		return nil
	})
	if err == nil && len(s.pages) == 0 {
		err = fmt.Errorf("%s has no pages", filepath.Join(root, docsDir))
	}
	s.readIndexLinks()
	return s, err
}

func parsePage(name string, raw []byte) *page {
	p := &page{path: name, title: name, source: raw, tree: markdown.Parser().Parse(text.NewReader(raw)), anchors: map[string]bool{}}
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it returns the callback's error, which is nil
		h, is := n.(*ast.Heading)
		if !is || !entering {
			return ast.WalkContinue, nil
		}
		if id, ok := h.AttributeString("id"); ok {
			if raw, ok := id.([]byte); ok {
				p.anchors[string(raw)] = true
			}
		}
		if h.Level == 1 && p.title == name {
			p.title = headingText(h, raw)
		}
		return ast.WalkSkipChildren, nil
	})
	return p
}

// headingText returns the text of a heading.
func headingText(n ast.Node, source []byte) string {
	var b strings.Builder
	_ = ast.Walk(n, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if t, ok := n.(*ast.Text); ok && entering {
			b.Write(t.Segment.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return b.String()
}

func (s *site) pageNames() []string {
	names := make([]string, 0, len(s.pages))
	for name := range s.pages {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// rewriteLinks rewrites the links of a page for the site.
func (s *site) rewriteLinks(p *page) error {
	var broken []error
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if link, ok := n.(*ast.Link); ok && entering {
			to, err := s.resolveLink(p, string(link.Destination))
			if err != nil {
				broken = append(broken, fmt.Errorf("%s/%s: link to %s: %w", docsDir, p.path, link.Destination, err))
			}
			link.Destination = []byte(to)
		}
		return ast.WalkContinue, nil
	})
	return errors.Join(broken...)
}

// resolveLink returns where a link of a page leads on the site.
func (s *site) resolveLink(from *page, link string) (string, error) {
	u, err := url.Parse(link)
	switch {
	case err != nil:
		return "", err
	case u.Scheme != "" || u.Host != "":
		return link, nil
	case u.Path == "":
		return link, from.checkHeadingExists(u.Fragment)
	}
	at := path.Join(docsDir, path.Dir(from.path), u.Path)
	name, inside := strings.CutPrefix(at, docsDir+"/")
	if to := s.pages[name]; inside && to != nil {
		u.Path = outputFile(u.Path)
		return u.String(), to.checkHeadingExists(u.Fragment)
	}
	if inside && s.files[name] {
		return link, nil
	}
	if strings.HasPrefix(at, "..") {
		return "", errors.New("the path is outside the repository")
	}
	if _, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(at))); err != nil {
		return "", errors.New("no such page or file")
	}
	return SourceURL + at, nil
}

func (p *page) checkHeadingExists(id string) error {
	if id == "" || p.anchors[id] {
		return nil
	}
	return fmt.Errorf("%s has no heading #%s", p.path, id)
}

// navEntry is a line of the navigation.
type navEntry struct {
	Title, Link string
	Here        bool
}

func (s *site) writeSite(to string) error {
	for _, name := range s.pageNames() {
		if err := s.writePage(to, s.pages[name]); err != nil {
			return fmt.Errorf("%s/%s: %w", docsDir, name, err)
		}
	}
	for name := range s.files {
		raw, err := os.ReadFile(filepath.Join(s.root, docsDir, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if err := writeFile(to, name, raw); err != nil {
			return err
		}
	}
	return nil
}

func (s *site) writePage(to string, p *page) error {
	var body, out bytes.Buffer
	if err := markdown.Renderer().Render(&body, p.source, p.tree); err != nil {
		return err
	}
	up := strings.Repeat("../", strings.Count(p.path, "/"))
	err := pageTemplate.Execute(&out, map[string]any{
		"Title": p.title, "Sections": s.navigationFor(p, up), "Body": template.HTML(body.String()), //nolint:gosec // goldmark omits raw HTML
	})
	if err != nil {
		return err
	}
	return writeFile(to, outputFile(p.path), out.Bytes())
}

func writeFile(to, name string, raw []byte) error {
	file := filepath.Join(to, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // it is public
		return err
	}
	return os.WriteFile(file, raw, 0o644) //nolint:gosec // it is public
}
