package doctor

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// listGrantedRights returns the permissions of the roles in files of deploy/, as verb and resource.
func listGrantedRights(t *testing.T, roles []string, files ...string) []string {
	t.Helper()
	var all []string
	for _, file := range files {
		raw, err := os.ReadFile(filepath.Join("..", "..", "deploy", file))
		must.NoError(t, err)
		docs := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(raw), 4096)
		for {
			var role rbacv1.ClusterRole // a Role has the same fields
			if err := docs.Decode(&role); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if slices.Contains(roles, role.Name) {
				all = append(all, formatRules(role.Rules)...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func formatRules(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, Permission{Verb: verb, Group: group, Resource: resource}.String())
				}
			}
		}
	}
	return all
}

func formatRights(rights []Permission) []string {
	var all []string
	for _, r := range rights {
		all = append(all, Permission{Verb: r.Verb, Group: r.Group, Resource: r.Resource}.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestPartRightsMatchShippedRoles(t *testing.T) {
	authorize := []string{"create subjectaccessreviews.authorization.k8s.io", "create tokenreviews.authentication.k8s.io"}
	for kind, c := range map[PartKind]struct {
		roles, files, more []string
	}{
		Agent: {roles: []string{"slipway-agent", "slipway-agent-surge"}, files: []string{"agent/rbac.yaml", "agent/surge/rbac.yaml"}},
		Manager: {
			roles: []string{"slipway-manager", "slipway-manager-install-crds", "slipway-manager-queue"},
			files: []string{"manager/rbac.yaml", "manager/install-crds.yaml", "manager/queue/rbac.yaml"},
		},
		// The permissions for --authorize are in system:auth-delegator, a role of Kubernetes.
		Cloudpool: {
			roles: []string{"slipway-cloudpool", "slipway-cloudpool-native"},
			files: []string{"cloudpool/rbac.yaml", "cloudpool/native.yaml"}, more: authorize,
		},
	} {
		want := slices.Concat(listGrantedRights(t, c.roles, c.files...), c.more)
		slices.Sort(want)
		if diff := cmp.Diff(want, formatRights(listPartRights(&Part{Kind: kind}))); diff != "" {
			t.Errorf("%s: in deploy/ (-), held to (+)\n%s", kind, diff)
		}
	}
}

func TestShippedUserRolesGrantNeededRights(t *testing.T) {
	var reads []Permission
	for reading, r := range rightsByReading {
		if reading != apiGroupsReading && reading != callerAccessReading { // every authenticated user has these
			reads = append(reads, r)
		}
	}
	want := listGrantedRights(t, []string{"slipway-doctor", "slipway-doctor-ask-agents"}, "viewer/doctor.yaml")
	check.Equal(t, want, formatRights(reads))
	viewer := listGrantedRights(t, []string{"slipway-viewer"}, "viewer/rbac.yaml")
	for _, right := range formatRights(listViewerRights()) {
		if !slices.Contains(viewer, right) {
			t.Errorf("slipway-viewer has no permission to %s", right)
		}
	}
}

func TestEveryRightHasAPurpose(t *testing.T) {
	all := slices.Concat(listAgentRights(), listManagerRights(&Part{}), listCloudpoolRights(), listViewerRights())
	for _, r := range rightsByReading {
		all = append(all, r)
	}
	for _, r := range all {
		if r.Purpose == "" || r.Verb == "" || r.Resource == "" {
			t.Errorf("%+v", r)
		}
	}
}

func TestDocsDescribeEveryRule(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "doctor.md"))
	must.NoError(t, err)
	sections := map[string]string{}
	for _, part := range strings.Split(string(raw), "\n### ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[strings.Trim(name, "`")] = body
	}
	for _, rule := range ListRules() {
		if body, ok := sections[rule.Name]; !ok || !strings.Contains(body, "**What to do.**") {
			t.Errorf("docs/doctor.md has no section with a remedy for rule %s", rule.Name)
		}
		delete(sections, rule.Name)
	}
	for name := range sections {
		t.Errorf("docs/doctor.md has a section for unknown rule %s", name)
	}
}
