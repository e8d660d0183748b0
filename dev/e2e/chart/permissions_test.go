package chart_test

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

//go:generate go test -vet=off -run TestManifestsMatch . -update

// withEverything contains the values of a release with every part and every right.
const withEverything = `
image: {registry: registry.example.com/slipway}
manager: {enabled: true, bootstrapTokens: true}
cloudpool: {enabled: true, nodeGroups: [workers], tls: {secretName: tls}}
`

// deployFiles lists the files below deploy/ that are rendered from the chart. Each has a pattern for the kind and name
// of its objects. The other files are written by hand. Their pods have no Helm release, so their selectors, volumes,
// and images differ.
var deployFiles = map[string]string{
	"agent/rbac.yaml":           `^(ServiceAccount|(Cluster)?Role(Binding)?) slipway-agent$`,
	"agent/admission.yaml":      `^ValidatingAdmissionPolicy(Binding)? slipway-agent-`,
	"agent/flowcontrol.yaml":    `^(PriorityLevelConfiguration|FlowSchema) slipway-agent`,
	"manager/rbac.yaml":         `^(ServiceAccount|(Cluster)?Role(Binding)?) slipway-manager$`,
	"manager/admission.yaml":    `^ValidatingAdmissionPolicy(Binding)? slipway-manager-(node|launches)$`,
	"manager/install-crds.yaml": ` slipway-manager-install-crds$`,
	// kustomize reads no files outside of its folder.
	"overlays/full/manager/install-crds.yaml": ` slipway-manager-install-crds$`,
	"manager/bootstrap.yaml":                  ` slipway-manager-bootstrap$`,
	"cloudpool/rbac.yaml":                     `^(ServiceAccount|(Cluster)?Role(Binding)?) slipway-cloudpool$`,
	"cloudpool/admission.yaml":                `^ValidatingAdmissionPolicy(Binding)? slipway-cloudpool(-retirements)?$`,
	"cloudpool/native.yaml":                   ` slipway-cloudpool-(native|launches)$`,
	"cloudpool/authorize.yaml":                ` slipway-cloudpool-(authorize|client)$`,
	"viewer/rbac.yaml":                        ` slipway-viewer$`,
	"viewer/top.yaml":                         ` slipway-top$`,
	"viewer/doctor.yaml":                      ` slipway-doctor(-ask-agents)?$`,
}

var (
	// permissionKind matches the kinds of objects about rights. Each such object must be in one of deployFiles.
	permissionKind = regexp.MustCompile(`^(ServiceAccount|(Cluster)?Role(Binding)?|ValidatingAdmissionPolicy(Binding)?|PriorityLevelConfiguration|FlowSchema) `)
	metaLabels     = regexp.MustCompile(`(?m)^  labels:\n(?:    .*\n)+`)
	// account matches a condition on one account. An overlay may put the account in another namespace.
	account = regexp.MustCompile(` == 'system:serviceaccount:slipway:([a-z-]+)'`)
)

// renderPermissions returns the documents about permissions of a release called slipway, by kind and name. It removes the
// labels of the release. Objects with the same kind and name, in several namespaces, follow each other.
func renderPermissions(t *testing.T) (ids []string, documents []string) {
	t.Helper()
	files, err := templates(t, load(t, slipwayChart), release(slipwayChart, namespace), values(t, withEverything))
	if err != nil {
		t.Fatal(err)
	}
	// rbac.yaml comes before the files that limit the rights. The files of one folder are in the reverse order of their
	// names.
	for _, file := range slices.Backward(slices.Sorted(maps.Keys(files))) {
		if filepath.Ext(file) != ".yaml" {
			continue
		}
		for document := range strings.SplitSeq("\n"+files[file], "\n---\n") {
			for _, o := range objects(t, document) {
				id := o.GetKind() + " " + o.GetName()
				if !permissionKind.MatchString(id) {
					continue
				}
				document = metaLabels.ReplaceAllString(strings.TrimSpace(document)+"\n", "")
				documents = append(documents, account.ReplaceAllString(document, ".matches('^system:serviceaccount:[^:]+:$1$$')"))
				ids = append(ids, id)
			}
		}
	}
	return ids, documents
}

// renderedComment ends the handwritten comment at the top of a file.
const renderedComment = "# Rendered from charts/slipway by make generate\n\n"

// TestManifestsMatchChartPermissions compares files below deploy/ with the chart.
func TestManifestsMatchChartPermissions(t *testing.T) {
	t.Parallel()
	ids, documents := renderPermissions(t)
	missing := map[string]bool{}
	for _, id := range ids {
		missing[id] = true
	}
	for name, pattern := range deployFiles {
		file := filepath.Join(root(t), "deploy", filepath.FromSlash(name))
		was, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var in []string
		for i, id := range ids {
			if regexp.MustCompile(pattern).MatchString(id) {
				in = append(in, documents[i])
				delete(missing, id)
			}
		}
		head, _, _ := strings.Cut(string(was), renderedComment)
		got := head + renderedComment + strings.Join(in, "---\n")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if d := cmp.Diff(string(was), got); d != "" {
			t.Errorf("-deploy/%s +rendered (make generate writes it):\n%s", name, d)
		}
	}
	for id := range missing {
		t.Errorf("the chart has %s, but no file below deploy/ has it", id)
	}
}
