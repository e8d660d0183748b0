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

// withEverything contains the values of a release with every part and every right but those for surges and queues.
const withEverything = `
image: {registry: registry.example.com/slipway}
manager: {enabled: true, bootstrapTokens: true}
cloudpool: {enabled: true, bootstrapTokens: true, nodeGroups: [workers], tls: {secretName: tls}}
`

// withSurge contains the values of a release with the rights for surges.
const withSurge = `
image: {registry: registry.example.com/slipway}
agent: {config: {surge: annotated}}
manager: {enabled: true, surge: true}
`

// deployFiles lists the files below deploy/ that are rendered from the chart. Each has a pattern for the kind and name
// of its objects. The other files are written by hand. Their pods have no Helm release, so their selectors, volumes,
// and images differ.
var deployFiles = map[string]string{
	"agent/rbac.yaml":           `^(ServiceAccount|(Cluster)?Role(Binding)?) slipway-agent$`,
	"agent/admission.yaml":      `^ValidatingAdmissionPolicy(Binding)? slipway-agent-`,
	"agent/flowcontrol.yaml":    `^(PriorityLevelConfiguration|FlowSchema) slipway-agent`,
	"manager/rbac.yaml":         `^(ServiceAccount|(Cluster)?Role(Binding)?) slipway-manager$`,
	"manager/admission.yaml":    `^ValidatingAdmissionPolicy(Binding)? slipway-manager-(node|eviction-request|launches)$`,
	"manager/install-crds.yaml": ` slipway-manager-install-crds$`,
	// kustomize reads no files outside of its folder.
	"overlays/full/manager/install-crds.yaml": ` slipway-manager-install-crds$`,
	"manager/bootstrap.yaml":                  ` slipway-manager-bootstrap$`,
	"cloudpool/rbac.yaml":                     `^(ServiceAccount|(Cluster)?Role(Binding)?) slipway-cloudpool$`,
	"cloudpool/admission.yaml":                `^ValidatingAdmissionPolicy(Binding)? slipway-cloudpool(-retirements)?$`,
	"cloudpool/native.yaml":                   ` slipway-cloudpool-(native|launches)$`,
	"cloudpool/bootstrap.yaml":                ` slipway-cloudpool-bootstrap$`,
	"cloudpool/authorize.yaml":                ` slipway-cloudpool-(authorize|client)$`,
	"viewer/rbac.yaml":                        ` slipway-viewer$`,
	"viewer/top.yaml":                         ` slipway-top$`,
	"viewer/doctor.yaml":                      ` slipway-doctor(-ask-agents)?$`,
}

// surgeFiles is as deployFiles, with the values withSurge. The rest of these values is as with withEverything.
var surgeFiles = map[string]string{
	"agent/surge/rbac.yaml":         `^(Cluster)?Role(Binding)? slipway-agent-surge$`,
	"agent/surge/admission.yaml":    `^ValidatingAdmissionPolicy(Binding)? slipway-agent-surge-`,
	"agent/surge/lease-policy.yaml": `^ValidatingAdmissionPolicy slipway-agent-lease$`,
	"manager/surge/rbac.yaml":       `^(Cluster)?Role(Binding)? slipway-manager-surge$`,
	"manager/surge/admission.yaml":  `^ValidatingAdmissionPolicy(Binding)? slipway-manager-surge-`,
}

// withQueue contains the values of a release with the rights for the notices of a queue.
const withQueue = `
image: {registry: registry.example.com/slipway}
manager: {enabled: true, awsQueue: {url: "https://sqs.eu-west-1.amazonaws.com/123456789012/notices"}}
`

// queueFiles is as surgeFiles, with the values withQueue.
var queueFiles = map[string]string{
	"manager/queue/rbac.yaml":        `^ClusterRole(Binding)? slipway-manager-queue$`,
	"manager/queue/admission.yaml":   `^ValidatingAdmissionPolicy(Binding)? slipway-manager-queue-`,
	"manager/queue/flowcontrol.yaml": `^(PriorityLevelConfiguration|FlowSchema) slipway-manager-queue`,
}

var (
	// permissionKind matches the kinds of objects about rights. Each such object must be in one of deployFiles.
	permissionKind = regexp.MustCompile(`^(ServiceAccount|(Cluster)?Role(Binding)?|ValidatingAdmissionPolicy(Binding)?|PriorityLevelConfiguration|FlowSchema) `)
	metaLabels     = regexp.MustCompile(`(?m)^  labels:\n(?:    .*\n)+`)
	// account matches a condition on one account. An overlay may put the account in another namespace.
	account = regexp.MustCompile(` == 'system:serviceaccount:slipway:([a-z-]+)'`)
)

// renderPermissions returns the documents about permissions of a release called slipway with these values, by kind and name. It removes the
// labels of the release. Objects with the same kind and name, in several namespaces, follow each other.
func renderPermissions(t *testing.T, text string) (ids []string, documents []string) {
	t.Helper()
	files, err := templates(t, load(t, slipwayChart), release(slipwayChart, namespace), values(t, text))
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

// TestManifestsMatchChartPermissions compares files below deploy/ with the chart. Every document of the chart must be in a file.
func TestManifestsMatchChartPermissions(t *testing.T) {
	t.Parallel()
	all, written := map[string]string{}, map[string]bool{} // by document
	for _, rendered := range []struct {
		values string
		files  map[string]string
	}{{withSurge, surgeFiles}, {withQueue, queueFiles}, {withEverything, deployFiles}} {
		ids, documents := renderPermissions(t, rendered.values)
		for i, id := range ids {
			all[documents[i]] = id
		}
		for name, pattern := range rendered.files {
			var in []string
			for i, id := range ids {
				if regexp.MustCompile(pattern).MatchString(id) {
					in = append(in, documents[i])
				}
			}
			for _, document := range in {
				written[document] = true
			}
			checkRendered(t, name, in)
		}
	}
	for document, id := range all {
		if !written[document] {
			t.Errorf("the chart has %s, but no file below deploy/ has it", id)
		}
	}
}

// checkRendered compares a file below deploy/ with documents. With -update it writes the file, and keeps the comment at its top.
func checkRendered(t *testing.T, name string, documents []string) {
	t.Helper()
	file := filepath.Join(root(t), "deploy", filepath.FromSlash(name))
	was, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(was), renderedComment)
	got := head + renderedComment + strings.Join(documents, "---\n")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(string(was), got); d != "" {
		t.Errorf("-deploy/%s +rendered (make generate writes it):\n%s", name, d)
	}
}
