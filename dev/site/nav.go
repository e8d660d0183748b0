package site

import (
	"path"
	"slices"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// indexPage is the page with links to the others. The navigation has its headings and its order.
const indexPage = "README.md"

// navSection is a part of the navigation.
type navSection struct {
	Title string
	Pages []navEntry
	paths []string
}

// otherPages is the section of pages without link from the index, by folder.
var otherPages = map[string]string{"reference": "Reference", "adr": "Decisions"}

// navSections returns the pages in the order of the index, each under the first heading that links to it. A page without
// link comes last in the section of its folder.
func (s *site) navSections() []navSection {
	var list []navSection
	placed := map[string]bool{indexPage: true}
	put := func(title, name string) {
		i := slices.IndexFunc(list, func(c navSection) bool { return c.Title == title })
		if i < 0 {
			list = append(list, navSection{Title: title})
			i = len(list) - 1
		}
		list[i].paths, placed[name] = append(list[i].paths, name), true
	}
	for _, l := range s.order {
		if !placed[l.page] {
			put(l.heading, l.page)
		}
	}
	for _, name := range s.pageNames() {
		if placed[name] {
			continue
		}
		title := otherPages[path.Dir(name)]
		if title == "" {
			title = "More"
		}
		put(title, name)
	}
	return list
}

// indexedPage is a page in the index, and its heading.
type indexedPage struct{ heading, page string }

// readIndexLinks reads the links of the index, before the links are rewritten for the site.
func (s *site) readIndexLinks() {
	p := s.pages[indexPage]
	if p == nil {
		return
	}
	// Text before the first heading is repeated below a heading.
	heading := ""
	_ = ast.Walk(p.tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) { // it returns the callback's error, which is nil
		switch n := n.(type) {
		case *ast.Heading:
			if entering && n.Level == 2 {
				heading = headingText(n, p.source)
			}
		case *ast.Link:
			name, _, _ := strings.Cut(string(n.Destination), "#")
			if entering && heading != "" && s.pages[path.Clean(name)] != nil {
				s.order = append(s.order, indexedPage{heading, path.Clean(name)})
			}
		}
		return ast.WalkContinue, nil
	})
}

// outputFile returns the site's file of a page.
func outputFile(name string) string {
	if path.Base(name) == indexPage {
		return path.Join(path.Dir(name), "index.html")
	}
	return strings.TrimSuffix(name, ".md") + ".html"
}

// navigationFor returns the navigation for a page.
func (s *site) navigationFor(on *page, up string) []navSection {
	list := s.navSections()
	for i := range list {
		for _, name := range list[i].paths {
			list[i].Pages = append(list[i].Pages, navEntry{s.pages[name].title, up + outputFile(name), name == on.path})
		}
	}
	if home := s.pages[indexPage]; home != nil {
		list = slices.Insert(list, 0, navSection{Pages: []navEntry{{home.title, up + outputFile(indexPage), on == home}}})
	}
	return list
}
