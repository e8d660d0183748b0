package site

import (
	"html"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestSiteNeedsNoNetwork(t *testing.T) {
	root, to := filepath.Join("..", ".."), t.TempDir()
	if err := BuildSite(root, to); err != nil {
		t.Fatal(err)
	}
	s, err := readSite(root)
	if err != nil {
		t.Fatal(err)
	}
	fetched := regexp.MustCompile(`<(?:script|link|img|iframe)[^>]+(?:src|href)=|@import|url\(`)
	for page := range s.pages {
		name := outputFile(page)
		shown, err := os.ReadFile(filepath.Join(to, filepath.FromSlash(name)))
		if err != nil {
			t.Error(err)
			continue
		}
		if found := fetched.Find(shown); found != nil {
			t.Errorf("%s loads an external resource: %s", name, found)
		}
		if !strings.Contains(string(shown), `aria-current="page"`) || !strings.Contains(string(shown), "<h1") {
			t.Errorf("%s has no title, or is not in the navigation", name)
		}
		if strings.Contains(string(shown), "<h2>More</h2>") {
			t.Fatal("docs/README.md does not link to all pages: the others are under More")
		}
	}
}

var (
	href   = regexp.MustCompile(`href="([^"]*)"`)
	anchor = regexp.MustCompile(`\bid="([^"]*)"`)
)

func TestEveryLinkOfBuiltSiteResolves(t *testing.T) {
	to := t.TempDir()
	if err := BuildSite(filepath.Join("..", ".."), to); err != nil {
		t.Fatal(err)
	}
	files, anchors := map[string]string{}, map[string]bool{}
	err := fs.WalkDir(os.DirFS(to), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		raw, err := os.ReadFile(filepath.Join(to, filepath.FromSlash(name)))
		files[name] = string(raw)
		for _, m := range anchor.FindAllStringSubmatch(string(raw), -1) {
			anchors[name+"#"+m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	for name, text := range files {
		if path.Ext(name) != ".html" {
			continue
		}
		for _, m := range href.FindAllStringSubmatch(text, -1) {
			u, err := url.Parse(html.UnescapeString(m[1]))
			if err != nil {
				t.Errorf("%s: link to %s: %v", name, m[1], err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			links++
			target := name
			if u.Path != "" {
				target = path.Join(path.Dir(name), u.Path)
			}
			if _, ok := files[target]; !ok {
				t.Errorf("%s: link to %s: the site has no %s", name, m[1], target)
			}
			if u.Fragment != "" && !anchors[target+"#"+u.Fragment] {
				t.Errorf("%s: link to %s: %s has no such heading", name, m[1], target)
			}
		}
	}
	if links < 20*20 {
		t.Errorf("the site has %d internal links: every page must link to all others", links)
	}
}

// writeTestRepository creates a repository with these files.
func writeTestRepository(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := writeFile(root, name, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLinksAreRewrittenForSite(t *testing.T) {
	root := writeTestRepository(t, map[string]string{
		"docs/a.md":     "# A\n\n[b](sub/b.md#two-words) [self](#a) [file](f.yaml) [code](../deploy/x.yaml) [far](https://example.com/c.md)\n",
		"docs/sub/b.md": "# B\n\n## Two *words*\n\n[a](../a.md)\n\n<script>alert(1)</script>\n", "docs/f.yaml": "f: 1\n", "deploy/x.yaml": "x: 1\n",
	})
	to := t.TempDir()
	if err := BuildSite(root, to); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string][]string{
		"a.html": {
			`href="sub/b.html#two-words"`, `href="#a"`, `href="f.yaml"`, `href="` + SourceURL + `deploy/x.yaml"`, `href="https://example.com/c.md"`,
			`<a href="sub/b.html">B</a>`,
		},
		"sub/b.html": {`href="../a.html"`, `id="two-words"`}, "f.yaml": {"f: 1"},
	} {
		got, err := os.ReadFile(filepath.Join(to, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(got), w) {
				t.Errorf("%s has no %s:\n%s", file, w, got)
			}
		}
		if strings.Contains(string(got), "<script") {
			t.Errorf("%s has raw HTML", file)
		}
	}
}

func TestNavigationFollowsIndex(t *testing.T) {
	root := writeTestRepository(t, map[string]string{
		"docs/README.md": "# All\n\n## Tutorial\n\n- [b](b.md)\n\n## Reference\n\n- [a](a.md#a), [again](b.md)\n",
		"docs/a.md":      "# A\n\n[home](README.md#tutorial)\n", "docs/b.md": "# B\n", "docs/c.md": "# C\n",
		"docs/reference/r.md": "# R\n", "docs/adr/1.md": "# One\n",
	})
	to := t.TempDir()
	if err := BuildSite(root, to); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(to, "reference", "r.html"))
	if err != nil {
		t.Fatal(err)
	}
	rest := string(got)
	for _, want := range []string{
		`<a href="../index.html">All</a>`, "<h2>Tutorial</h2>", `<a href="../b.html">B</a>`, "<h2>Reference</h2>", `<a href="../a.html">A</a>`,
		`<a href="../reference/r.html" aria-current="page">R</a>`, "<h2>Decisions</h2>", ">One</a>", "<h2>More</h2>", ">C</a>",
	} {
		_, after, found := strings.Cut(rest, want)
		if !found {
			t.Fatalf("%s is missing or in the wrong place:\n%s", want, got)
		}
		rest = after
	}
	if a, err := os.ReadFile(filepath.Join(to, "a.html")); err != nil || !strings.Contains(string(a), `href="index.html#tutorial"`) {
		t.Errorf("the link to the index: %v\n%s", err, a)
	}
}

func TestBrokenLinkIsReportedAndNothingWritten(t *testing.T) {
	for link, want := range map[string]string{
		"b.md":         "docs/a.md: link to b.md: no such page or file",
		"a.md#nothing": "docs/a.md: link to a.md#nothing: a.md has no heading #nothing",
		"#nothing":     "a.md has no heading #nothing",
		"../../etc":    "the path is outside the repository",
		"../none.go":   "no such page or file",
		"f.yaml":       "no such page or file",
	} {
		to := filepath.Join(t.TempDir(), "site")
		err := BuildSite(writeTestRepository(t, map[string]string{"docs/a.md": "# A\n\n[x](" + link + ")\n"}), to)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", link, err, want)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: something was written", link)
		}
	}
	if err := BuildSite(writeTestRepository(t, map[string]string{"docs/a.txt": ""}), t.TempDir()); err == nil {
		t.Error("a site without pages was built")
	}
}
