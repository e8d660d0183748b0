package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// The tables of rights are written by hand, because each row has a purpose or a limit. These tests compare the rights in them with the
// RBAC manifests below deploy/.
//
// A cell with rights has clauses such as "get, list and watch nodes, pods; patch nodes/status". A clause without a resource is about all
// resources of the manifest. A clause that begins with "with" is about rights that no manifest has.

// verbGroups are the words for several verbs. At least one of the verbs must be granted.
var verbGroups = map[string][]string{
	"read":  {"get", "list", "watch"},
	"write": {"create", "update", "patch", "delete"},
}

// volumeResources are the resources that the pages call volumes.
var volumeResources = []string{"csidrivers", "csinodes", "persistentvolumeclaims", "persistentvolumes", "storageclasses", "volumeattachments"}

var (
	rbacVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete"}
	// manifestPath matches a file or folder with the RBAC manifest of a row.
	manifestPath = regexp.MustCompile(`deploy/[a-z/-]+(\.yaml)?`)
	roleKind     = regexp.MustCompile(`(?m)^kind: (Cluster)?Role$`)
	linkTarget   = regexp.MustCompile(`\]\([^)]*\)`)
	// qualifier matches the end of a clause that says which objects it is about.
	qualifier = regexp.MustCompile(` (of|in) .*`)
)

// rule is one part of a clause: any of the verbs on any of the resources. No resources are all resources.
type rule struct{ verbs, resources []string }

func (r rule) covers(verb, resource string) bool {
	return slices.Contains(r.verbs, verb) && (len(r.resources) == 0 || slices.Contains(r.resources, resource))
}

// parseRights returns the rules of a cell.
func parseRights(t *testing.T, cell string) (rules []rule) {
	t.Helper()
	for clause := range strings.SplitSeq(cell, ";") {
		clause = qualifier.ReplaceAllString(strings.TrimSpace(clause), "")
		if strings.HasPrefix(clause, "with ") {
			continue
		}
		var verbs [][]string
		var resources []string
		isEviction := false
		for word := range strings.FieldsSeq(strings.NewReplacer(",", " ", " and ", " ", "`", "").Replace(clause)) {
			switch group := verbGroups[word]; {
			case group != nil:
				verbs = append(verbs, group)
			case slices.Contains(rbacVerbs, word):
				verbs = append(verbs, []string{word})
			case word == "evict":
				isEviction = true
			default:
				resources = append(resources, strings.ToLower(word))
			}
		}
		if len(verbs) == 0 && !isEviction {
			t.Errorf("%q has no verb of RBAC: want clauses such as \"get and list nodes, pods; patch nodes/status\"", cell)
		}
		for _, v := range verbs {
			if len(resources) == 0 {
				rules = append(rules, rule{v, nil})
			}
			for _, resource := range resources {
				of := []string{resource}
				if resource == "volumes" {
					of = volumeResources
				}
				rules = append(rules, rule{v, of})
			}
		}
		for _, resource := range resources {
			if isEviction {
				rules = append(rules, rule{[]string{"create"}, []string{resource + "/eviction"}})
			}
		}
	}
	return rules
}

// readGrants returns the rights of the roles in a file of the repository, as pairs of verb and resource.
func readGrants(t *testing.T, path string) (grants [][2]string) {
	t.Helper()
	raw, err := os.ReadFile(repositoryPath(path))
	must(err)
	docs := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
	for {
		var role rbacv1.ClusterRole // a Role has the same fields
		if err := docs.Decode(&role); errors.Is(err, io.EOF) {
			return grants
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if role.Kind != "ClusterRole" && role.Kind != "Role" {
			continue
		}
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					grants = append(grants, [2]string{verb, resource})
				}
			}
		}
	}
}

// checkRights compares the rules of a page with the grants of a manifest.
func checkRights(t *testing.T, page, manifest string, rules []rule) {
	t.Helper()
	grants := readGrants(t, manifest)
	if len(grants) == 0 {
		t.Errorf("%s: %s grants nothing", page, manifest)
	}
	for _, g := range grants {
		if !slices.ContainsFunc(rules, func(r rule) bool { return r.covers(g[0], g[1]) }) {
			t.Errorf("%s lacks a right of %s: %s %s", page, manifest, g[0], g[1])
		}
	}
	for _, r := range rules {
		if !slices.ContainsFunc(grants, func(g [2]string) bool { return r.covers(g[0], g[1]) }) {
			t.Errorf("%s has a right that %s does not grant: %s %s", page, manifest, strings.Join(r.verbs, " or "), strings.Join(r.resources, " or "))
		}
	}
}

// readTable returns the cells of the rows of the first table after a heading of a page.
func readTable(t *testing.T, page, heading string) (rows [][]string) {
	t.Helper()
	raw, err := os.ReadFile(repositoryPath(page))
	must(err)
	_, text, found := strings.Cut(string(raw), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", page, heading)
	}
	_, text, _ = strings.Cut(text, "|---|")
	_, text, _ = strings.Cut(text, "\n")
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		rows = append(rows, strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|"))
	}
	if len(rows) < 3 {
		t.Fatalf("%s: the table after %q has %d rows", page, heading, len(rows))
	}
	return rows
}

// findManifest returns the RBAC manifest of a row: the one that the row names, or else that of the part.
func findManifest(row []string) string {
	for _, path := range manifestPath.FindAllString(strings.Join(row, "|"), -1) {
		switch {
		case strings.HasSuffix(path, "/admission.yaml"):
		case strings.HasSuffix(path, ".yaml"):
			return path
		default:
			return path + "/rbac.yaml"
		}
	}
	return "deploy/" + strings.TrimSpace(row[0]) + "/rbac.yaml"
}

func TestTablesOfRightsMatchManifests(t *testing.T) {
	for page, c := range map[string]struct {
		heading string
		// column is the number of the column with the rights.
		column int
		// isChecked reports whether the row is about rights that a manifest grants.
		isChecked func(row []string) bool
	}{
		"docs/architecture.md": {"Who talks to whom, with which right", 2, func(row []string) bool {
			return strings.TrimSpace(row[1]) == "API server" && !strings.Contains(row[0], "with NodeGroups in a file") && !strings.Contains(row[0], "with surges")
		}},
		"SECURITY.md": {"What each part may do", 1, func(row []string) bool { return !strings.Contains(row[0], "people with") }},
	} {
		rules := map[string][]rule{} // by manifest
		for _, row := range readTable(t, page, c.heading) {
			if c.isChecked(row) {
				manifest := findManifest(row)
				rules[manifest] = append(rules[manifest], parseRights(t, linkTarget.ReplaceAllString(row[c.column], "]"))...)
			}
		}
		for manifest, rules := range rules {
			checkRights(t, page, manifest, rules)
		}
		for _, manifest := range listManifests() {
			if rules[manifest] == nil {
				t.Errorf("%s has no row about %s", page, manifest)
			}
		}
	}
}

// listManifests returns the manifests with roles of Slipway's parts, without those for surges, which have a table of their own.
func listManifests() (all []string) {
	root := repositoryPath("deploy")
	must(filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"overlays", "surge", "viewer"}, d.Name()) {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".yaml" {
			return nil
		}
		raw, err := os.ReadFile(path)
		// The role in authorize.yaml is for clients of the cloudpool server.
		if err == nil && roleKind.Match(raw) && d.Name() != "authorize.yaml" {
			relative, err := filepath.Rel(root, path)
			must(err)
			all = append(all, "deploy/"+filepath.ToSlash(relative))
		}
		return err
	}))
	return all
}

func TestTableOfSurgeRightsMatchesManifests(t *testing.T) {
	const page = "docs/surge.md"
	var rules []rule
	for _, row := range readTable(t, page, "Rights") {
		for clause := range strings.SplitSeq(row[1], ";") {
			verbs, subresource, found := strings.Cut(clause, " their ")
			objects := qualifier.ReplaceAllString(strings.TrimSpace(row[0]), "")
			if found {
				objects = strings.ReplaceAll(objects, ",", "/"+subresource+",") + "/" + subresource
			}
			rules = append(rules, parseRights(t, verbs+" "+objects)...)
		}
	}
	for _, manifest := range []string{"deploy/agent/surge/rbac.yaml", "deploy/manager/surge/rbac.yaml"} {
		checkRights(t, page, manifest, rules)
	}
}
