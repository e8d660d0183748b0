// Package site_test builds the web site and reads it in a real Chromium.
package site_test

import (
	"bytes"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/png"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/slipway-dev/slipway/dev/browser"
	"github.com/slipway-dev/slipway/dev/testbed"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// Widths of a telephone and of a notebook, in CSS pixels.
const (
	narrow = 390
	wide   = 1440
)

// layouts has one page for each kind of content: the landing page, the index, code with its file name, wide tables, pictures,
// long generated tables, a shown folder, and the page for missing pages.
var layouts = []string{
	"/", "/docs/", "/docs/tutorial.html", "/docs/install.html", "/docs/architecture.html", "/docs/reference/conditions.html",
	"/source/deploy/viewer/", "/missing.html",
}

const (
	// hydrated is true once the page's script handles clicks.
	hydrated = "document.querySelector('#app')?.__vue_app__ !== undefined"
	// still is true while nothing moves or fades. Axe compares the colours of the moment.
	still = "document.getAnimations().every(a => a.playState !== 'running')"
)

var buildSite = sync.OnceValues(func() (string, error) {
	root, err := testbed.RepositoryRoot()
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("make", "-s", "-C", root, "site").CombinedOutput(); err != nil { //nolint:noctx // make test has a timeout
		return "", fmt.Errorf("make site: %w\n%s", err, out)
	}
	return filepath.Join(root, "dist", "site"), nil
})

// findVitePress returns the folder of the repository. It skips the test without VitePress.
func findVitePress(t *testing.T) string {
	t.Helper()
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "site", "node_modules", "vitepress")); err != nil {
		t.Skipf("VitePress is not installed (npm ci in site/): %v", err)
	}
	return root
}

// serve builds the site once, and serves it as static hosts do: with 404.html for missing pages.
func serve(t *testing.T) (folder, address string) {
	t.Helper()
	findVitePress(t)
	folder, err := buildSite()
	if err != nil {
		t.Fatal(err)
	}
	missing, err := os.ReadFile(filepath.Join(folder, "404.html"))
	if err != nil {
		t.Fatal(err)
	}
	files := http.FileServer(http.Dir(folder))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := os.Stat(filepath.Join(folder, filepath.FromSlash(path.Clean(r.URL.Path)))); err != nil {
			// Chromium reports the status 404 as an error on the console, which the page itself does not cause.
			_, _ = w.Write(missing)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return folder, server.URL
}

var (
	link   = regexp.MustCompile(`\b(?:href|src)="([^"]*)"`)
	anchor = regexp.MustCompile(`\bid="([^"]*)"`)
)

// crawl returns the pages that links lead to from the landing page of the site in the folder, and reports dead links. The
// address of each page begins with the base. Crawl ignores links to other hosts: tests send no requests to them.
func crawl(t *testing.T, folder, base string) []string {
	t.Helper()
	pages := map[string]string{} // text by address
	anchors := map[string]bool{}
	type reference struct{ from, link, to, fragment string }
	var fragments []reference
	todo := []reference{{to: base}, {to: base + "404.html"}}
	for len(todo) > 0 {
		next := todo[0]
		todo = todo[1:]
		if _, done := pages[next.to]; done {
			continue
		}
		name, inside := strings.CutPrefix(next.to, base)
		if !inside {
			t.Errorf("%s: link to %s leads out of %s", next.from, next.link, base)
			continue
		}
		file := filepath.Join(folder, filepath.FromSlash(name))
		if name == "" || strings.HasSuffix(next.to, "/") {
			file = filepath.Join(file, "index.html")
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Errorf("%s: link to %s: %v", next.from, next.link, err)
			continue
		}
		pages[next.to] = string(raw)
		if path.Ext(file) != ".html" {
			continue
		}
		for _, m := range anchor.FindAllStringSubmatch(string(raw), -1) {
			anchors[next.to+"#"+html.UnescapeString(m[1])] = true
		}
		from := &url.URL{Path: next.to}
		for _, m := range link.FindAllStringSubmatch(string(raw), -1) {
			u, err := from.Parse(html.UnescapeString(m[1]))
			if err != nil {
				t.Errorf("%s: link to %s: %v", next.to, m[1], err)
				continue
			}
			if u.Scheme != "" || u.Host != "" {
				continue
			}
			r := reference{next.to, m[1], u.Path, u.Fragment}
			todo = append(todo, r)
			if r.fragment != "" {
				fragments = append(fragments, r)
			}
		}
	}
	for _, r := range fragments {
		if !anchors[r.to+"#"+r.fragment] {
			t.Errorf("%s: link to %s: no such heading", r.from, r.link)
		}
	}
	var list []string
	for address := range pages {
		if strings.HasSuffix(address, "/") || path.Ext(address) == ".html" {
			list = append(list, address)
		}
	}
	slices.Sort(list)
	return list
}

func TestEveryLinkOfSiteIsAlive(t *testing.T) {
	folder, _ := serve(t)
	pages := crawl(t, folder, "/")
	if len(pages) < 60 {
		t.Errorf("links lead to %d pages only", len(pages))
	}
	err := filepath.WalkDir(folder, func(file string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(file) != ".html" {
			return err
		}
		name, err := filepath.Rel(folder, file)
		if address := "/" + strings.TrimSuffix(filepath.ToSlash(name), "index.html"); !slices.Contains(pages, address) {
			t.Errorf("no link leads to %s", address)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// shape is what must hold for each page at each width. The script below fills it.
type shape struct {
	Overflow                       []string // elements that reach beyond the window
	Width                          int      // of the content that can be scrolled to
	Levels                         []int    // of the headings of the main part
	NoText                         []string // images without alternative text
	Broken                         []string // images that are not loaded
	Header, Sidebar, Main, Outline box
	Images                         []box
}

type box struct{ X, Y, W, H float64 }

const readShape = `(() => {
	const place = (e) => {
		if (!e || getComputedStyle(e).visibility === 'hidden') return {}
		const r = e.getBoundingClientRect()
		return r.width && r.right > 0 && r.left < innerWidth ? {X: r.x, Y: r.y, W: r.width, H: r.height} : {}
	}
	const box = (selector) => place(document.querySelector(selector))
	const scrolls = (e) => e && e !== document.body && (/auto|scroll|hidden|clip/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement))
	const shown = [...document.querySelectorAll('.VPContent *, .VPNav *')].filter(e => e.getClientRects().length)
	return {
		Overflow: shown.filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e)).map(e => e.outerHTML.slice(0, 120)),
		Width: document.documentElement.scrollWidth,
		Levels: [...document.querySelectorAll('.VPContent :is(h1,h2,h3,h4,h5,h6)')].filter(e => e.getClientRects().length && !e.closest('aside')).map(e => Number(e.tagName[1])),
		NoText: [...document.images].filter(e => !e.hasAttribute('alt')).map(e => e.src),
		Broken: [...document.images].filter(e => e.getClientRects().length && e.complete && !e.naturalWidth).map(e => e.src),
		Header: box('header.VPNav'), Sidebar: box('.VPSidebar'), Main: box('main, .VPHome, .NotFound'), Outline: box('.VPDocAside'),
		Images: [...document.querySelectorAll('main img')].map(place),
	}
})()`

// checkShape compares the places of the parts of a page with what its width asks for.
func checkShape(t *testing.T, address string, width float64, s shape) {
	t.Helper()
	if len(s.Overflow) > 0 || float64(s.Width) > width {
		t.Errorf("%s at %.0f px is %d px wide: %q", address, width, s.Width, s.Overflow)
	}
	if len(s.NoText)+len(s.Broken) > 0 {
		t.Errorf("%s: images without alternative text: %q; not loaded: %q", address, s.NoText, s.Broken)
	}
	if len(s.Levels) == 0 || s.Levels[0] != 1 {
		t.Errorf("%s: the headings have the levels %d, want 1 first", address, s.Levels)
	}
	for i := 1; i < len(s.Levels); i++ {
		if s.Levels[i] > s.Levels[i-1]+1 || s.Levels[i] == 1 {
			t.Errorf("%s: the headings have the levels %d", address, s.Levels)
			break
		}
	}
	if s.Header.X != 0 || s.Header.Y != 0 || s.Header.W != width || s.Header.H < 50 {
		t.Errorf("%s at %.0f px: the header is at %+v", address, width, s.Header)
	}
	if s.Main.W < 300 || s.Main.X+s.Main.W > width {
		t.Errorf("%s at %.0f px: the content is at %+v, below a header at %+v", address, width, s.Main, s.Header)
	}
	isPage := strings.HasPrefix(address, "/docs/") || strings.HasPrefix(address, "/source/")
	switch {
	case width == narrow && s.Sidebar.W != 0:
		t.Errorf("%s at %.0f px shows the sidebar at %+v before the menu is opened", address, width, s.Sidebar)
	case width == wide && isPage && (s.Sidebar.X != 0 || s.Sidebar.W < 200 || s.Main.X < s.Sidebar.W):
		t.Errorf("%s at %.0f px: the sidebar is at %+v, the content at %+v", address, width, s.Sidebar, s.Main)
	case width == wide && isPage && slices.Contains(s.Levels, 2) && (s.Outline.W < 100 || s.Outline.X < s.Main.X+s.Main.W):
		t.Errorf("%s at %.0f px: the table of contents is at %+v, the content at %+v", address, width, s.Outline, s.Main)
	}
}

// checkClean reports what the browser complained about, and requests to other hosts.
func checkClean(t *testing.T, page *browser.Page, address string) {
	t.Helper()
	if found := page.Console(); len(found) > 0 {
		t.Errorf("the console has %q", found)
	}
	for _, request := range page.Requests() {
		if !strings.HasPrefix(request, address+"/") && !strings.HasPrefix(request, "data:") {
			t.Errorf("a page requests %s, which is not on its host", request)
		}
	}
}

// open opens a page and waits until it handles clicks.
func open(t *testing.T, address string, width, height int64) *browser.Page {
	t.Helper()
	page := browser.Open(t, address, width, height)
	page.WaitFor(hydrated)
	return page
}

func TestEveryPageFitsAndIsAccessible(t *testing.T) {
	folder, address := serve(t)
	pages := slices.DeleteFunc(crawl(t, folder, "/"), func(name string) bool {
		// Pages that show files have one layout, and are long.
		return strings.HasPrefix(name, "/source/") || slices.Contains(layouts, name)
	})
	pages = append(pages, layouts...)
	for _, width := range []int64{narrow, wide} {
		t.Run(fmt.Sprint(width), func(t *testing.T) {
			t.Parallel()
			page := open(t, address+"/", width, 900)
			for _, name := range pages {
				page.Navigate(address + name)
				page.WaitFor(hydrated + " && document.querySelector('.VPContent') !== null && document.querySelector('.VPSwitchAppearance[title]') !== null")
				var s shape
				page.Eval(readShape, &s)
				checkShape(t, name, float64(width), s)
				if slices.Contains(layouts, name) {
					checkScreenshot(t, page, name, int(width), s)
				}
				themes := bothThemes
				if !slices.Contains(layouts, name) {
					themes = []bool{width == wide} // all four combinations would take twice as long
				}
				checkAccessible(t, page, name, themes)
			}
			checkClean(t, page, address)
		})
	}
}

// checkScreenshot saves a screenshot as an artifact of the test, and checks that Chromium painted something into each box.
func checkScreenshot(t *testing.T, page *browser.Page, name string, width int, s shape) {
	t.Helper()
	raw := page.Screenshot()
	file := "page" + strings.TrimSuffix(strings.ReplaceAll(name, "/", "-"), "-") + ".png"
	if err := os.WriteFile(filepath.Join(t.ArtifactDir(), file), raw, 0o600); err != nil {
		t.Error(err)
	}
	picture, err := png.Decode(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if size := picture.Bounds(); size.Dx() != width || float64(size.Dy()) < s.Main.Y+s.Main.H {
		t.Errorf("%s at %d px: the screenshot has %v, the content is at %+v", name, width, size, s.Main)
	}
	for i, b := range append([]box{s.Header, s.Sidebar, s.Main, s.Outline}, s.Images...) {
		if b.W > 0 && isBlank(picture, b) {
			t.Errorf("%s at %d px: nothing is painted into the box %d at %+v (header, sidebar, content, table of contents, images)", name, width, i, b)
		}
	}
}

// isBlank reports whether a part of a picture has no text and no drawing, which have many colors at their edges.
func isBlank(picture image.Image, b box) bool {
	part := image.Rect(int(b.X), int(b.Y), int(b.X+b.W), int(b.Y+b.H)).Intersect(picture.Bounds())
	colors := map[color.Color]bool{}
	for y := part.Min.Y; y < part.Max.Y; y++ {
		for x := part.Min.X; x < part.Max.X; x++ {
			colors[picture.At(x, y)] = true
			if len(colors) > 8 {
				return false
			}
		}
	}
	return true
}

func TestLandingPageHasPitchPictureAndComparison(t *testing.T) {
	_, address := serve(t)
	readme, err := os.ReadFile(filepath.Join(findVitePress(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := open(t, address+"/", wide, 900)
	var is struct {
		Pitch    string
		Pictures []string
		Tables   []struct {
			Heads []string
			Rows  int
		}
	}
	page.Eval(`({
		Pitch: document.querySelector('main h1').innerText + ' ' + document.querySelector('main .tagline').innerText,
		Pictures: [...document.querySelectorAll('main img')].filter(e => e.getClientRects().length && e.naturalWidth).map(e => e.src),
		Tables: [...document.querySelectorAll('main table')].map(e => ({Heads: [...e.rows[0].cells].map(c => c.innerText), Rows: e.rows.length})),
	})`, &is)
	if want := strings.Join(strings.Fields(strings.Split(string(readme), "\n\n")[1]), " "); is.Pitch != want {
		t.Errorf("the pitch is %q, want the first paragraph of README.md: %q", is.Pitch, want)
	}
	if !slices.ContainsFunc(is.Pictures, func(name string) bool { return strings.Contains(name, "overview-light") }) {
		t.Errorf("the picture of the overview is missing in %q", is.Pictures)
	}
	compares := false
	for _, table := range is.Tables {
		compares = compares || table.Rows > 5 && slices.Contains(table.Heads, "Karpenter") && slices.Contains(table.Heads, "cluster-autoscaler")
	}
	if !compares {
		t.Errorf("no table compares Slipway with Karpenter and cluster-autoscaler: %+v", is.Tables)
	}
}

func TestMissingPageNamesTheFaultAndLeadsToFirstPage(t *testing.T) {
	_, address := serve(t)
	page := open(t, address+"/docs/missing.html", wide, 900)
	var text string
	page.Eval("document.querySelector('main').innerText", &text)
	for _, want := range []string{"404", "Page not found", "The address is wrong, or the page has moved"} {
		if !strings.Contains(text, want) {
			t.Errorf("the text for a missing page lacks %q: %q", want, text)
		}
	}
	page.Click("main a")
	page.WaitFor("location.pathname === '/' && document.querySelector('main .tagline') !== null")
	checkClean(t, page, address)
}

func TestCodeIsHighlightedForEachTheme(t *testing.T) {
	_, address := serve(t)
	// One page has code, the other shows a file of the repository.
	for _, name := range []string{"/docs/aks-spot.html", "/source/deploy/viewer/rbac.yaml.html"} {
		page := open(t, address+name, wide, 900)
		const read = `[...new Set([...document.querySelectorAll('.language-yaml .line span')].map(e => getComputedStyle(e).color))]`
		var light, dark []string
		page.Eval(read, &light)
		page.Eval("document.documentElement.classList.add('dark')", nil)
		page.Eval(read, &dark)
		if len(light) < 3 || len(dark) < 3 {
			t.Errorf("%s: YAML has the light colors %q and the dark colors %q, want at least 3", name, light, dark)
		}
		if slices.ContainsFunc(light, func(c string) bool { return slices.Contains(dark, c) }) {
			t.Errorf("%s: YAML has the light colors %q and the dark colors %q, want different ones", name, light, dark)
		}
	}
}

// Only the environment variables of site/.vitepress/config.mjs move the site and add links to a code host.
func TestSiteCanMoveAndLinkToItsSources(t *testing.T) {
	root := findVitePress(t)
	const host = "https://git.example.org/slipway/edit/main/"
	editLink := regexp.MustCompile(`class="[^"]*edit-link-button[^"]*"[^>]* href="([^"]*)"`)
	plain, err := buildSite()
	if err != nil {
		t.Fatal(err)
	}
	moved := t.TempDir()
	build := exec.CommandContext(t.Context(), "npm", "run", "--silent", "build", "--", "--outDir", moved)
	build.Dir = filepath.Join(root, "site")
	build.Env = append(os.Environ(), "SITE_BASE=/slipway/", "SITE_EDIT="+strings.TrimSuffix(host, "/"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	read := func(folder, file string) []byte {
		raw, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	sources := map[string]bool{}
	for _, name := range crawl(t, moved, "/slipway/") {
		file := strings.TrimPrefix(name, "/slipway/")
		if file == "" || strings.HasSuffix(file, "/") {
			file += "index.html"
		}
		m := editLink.FindSubmatch(read(moved, file))
		if isDocument := file != "index.html" && file != "404.html" && !strings.HasPrefix(file, "source/"); isDocument != (m != nil) {
			t.Errorf("%s: the edit link is %q", file, m)
		}
		if m == nil {
			continue
		}
		source, found := strings.CutPrefix(string(m[1]), host)
		if _, err := os.Stat(filepath.Join(root, filepath.FromSlash(source))); !found || err != nil || sources[source] {
			t.Errorf("%s: the edit link leads to %s, want a file of its own below %s: %v", file, m[1], host, err)
		}
		sources[source] = true
		if m := editLink.Find(read(plain, file)); m != nil {
			t.Errorf("%s has an edit link without SITE_EDIT: %s", file, m)
		}
	}
	if !sources["docs/README.md"] || len(sources) < 60 {
		t.Errorf("edit links lead to %d files only: %v", len(sources), slices.Sorted(maps.Keys(sources)))
	}
}

// bothThemes are the values of dark for checkAccessible.
var bothThemes = []bool{true, false}

// checkAccessible runs axe on the page as it is now, with dark or light colours.
func checkAccessible(t *testing.T, page *browser.Page, name string, themes []bool) {
	t.Helper()
	for _, dark := range themes {
		page.Eval(fmt.Sprintf(`document.documentElement.classList.toggle('dark', %t)`, dark), nil)
		// Colours in transition have other contrasts.
		page.Eval(`document.getAnimations().forEach(a => a.finish())`, nil)
		if found := page.Axe(); len(found) > 0 {
			t.Errorf("%s, dark %t:\n%s", name, dark, strings.Join(found, "\n"))
		}
	}
}

func TestCopyButtonTakesCommandsWithoutOutput(t *testing.T) {
	_, address := serve(t)
	page := open(t, address+"/docs/doctor.html", wide, 900)
	page.Eval(`Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => { window.copied = text }}})`, nil)
	page.Eval(`[...document.querySelectorAll('.language-console')].find(e => e.innerText.includes('found agent')).querySelector('button.copy').click()`, nil)
	var copied string
	page.Eval("window.copied", &copied)
	if copied != "slipway doctor" {
		t.Errorf("the copy button copied %q, want the command only", copied)
	}
}

func TestSearchFindsPagesAboutPDB(t *testing.T) {
	_, address := serve(t)
	page := open(t, address+"/", wide, 900)
	page.Click("#local-search button")
	page.WaitFor("document.activeElement?.id === 'localsearch-input'")
	page.Press("PDB")
	page.WaitFor("document.querySelectorAll('#localsearch-list a.result').length > 1")
	checkAccessible(t, page, "the search box", bothThemes)
	page.Press("\r")
	page.WaitFor("location.pathname.startsWith('/docs/') && document.querySelector('main h1') !== null")
	checkClean(t, page, address)
}

func TestMobileMenusOpenAndLeadToPages(t *testing.T) {
	_, address := serve(t)
	page := open(t, address+"/", narrow, 844)
	page.Click(".VPNavBarHamburger")
	page.WaitFor("document.querySelector('.VPNavScreen') !== null && " + still)
	page.Click(".VPNavScreen a[href='/docs/']")
	// Until it has faded, the closed menu lies over the page and takes the next click.
	page.WaitFor("location.pathname === '/docs/' && document.querySelector('.VPLocalNav .menu') !== null && document.querySelector('.VPNavScreen') === null")
	page.Click(".VPLocalNav .menu")
	page.WaitFor("document.querySelector('.VPSidebar').getBoundingClientRect().left === 0 && " + still)
	checkAccessible(t, page, "the opened menu", bothThemes)
	page.Click(".VPSidebar a[href='/docs/tutorial.html']")
	page.WaitFor("location.pathname === '/docs/tutorial.html' && document.querySelector('.VPSidebar').getBoundingClientRect().right <= 0")
	checkClean(t, page, address)
}

func TestDarkModeSwitchesPicturesAndSurvivesReload(t *testing.T) {
	_, address := serve(t)
	page := open(t, address+"/docs/architecture.html", wide, 900)
	const look = `[getComputedStyle(document.body).backgroundColor, [...document.querySelectorAll('main img')].filter(e => e.getClientRects().length).map(e => e.src.includes('-dark'))].flat()`
	var light, dark, later []any
	page.Eval(look, &light)
	page.Click(".VPNavBarAppearance .VPSwitchAppearance")
	page.WaitFor("document.documentElement.classList.contains('dark')")
	page.Eval(look, &dark)
	page.Navigate(address + "/docs/architecture.html?again")
	page.Eval(look, &later)
	for name, got := range map[string][]any{"light": light, "dark": dark, "dark after a reload": later} {
		if len(got) != 5 {
			t.Fatalf("%s: the colour and pictures are %v, want 4 pictures", name, got)
		}
		for _, isDark := range got[1:] {
			if isDark != (name != "light") {
				t.Errorf("%s: the dark pictures are %v", name, got)
			}
		}
	}
	if light[0] == dark[0] || dark[0] != later[0] {
		t.Errorf("the background is %v, then %v, after a reload %v", light[0], dark[0], later[0])
	}
	checkClean(t, page, address)
}
