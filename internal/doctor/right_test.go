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

// granted are the rights of the roles in a file of deploy/, as verb and resource.
func granted(t *testing.T, roles []string, files ...string) []string {
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
				all = append(all, spelled(role.Rules)...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func spelled(rules []rbacv1.PolicyRule) []string {
	var all []string
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, Right{Verb: verb, Group: group, Resource: resource}.String())
				}
			}
		}
	}
	return all
}

func bare(rights []Right) []string {
	var all []string
	for _, r := range rights {
		all = append(all, Right{Verb: r.Verb, Group: r.Group, Resource: r.Resource}.String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func TestRightsOfPartsAreThoseOfTheirRoles(t *testing.T) {
	authorize := []string{"create subjectaccessreviews.authorization.k8s.io", "create tokenreviews.authentication.k8s.io"}
	for kind, c := range map[PartKind]struct {
		roles, files, more []string
	}{
		Agent: {roles: []string{"slipway-agent"}, files: []string{"agent/rbac.yaml"}},
		Manager: {
			roles: []string{"slipway-manager", "slipway-manager-install-crds"},
			files: []string{"manager/rbac.yaml", "manager/install-crds.yaml"},
		},
		// Those of --authorize are of system:auth-delegator, a role of Kubernetes' own.
		Cloudpool: {
			roles: []string{"slipway-cloudpool", "slipway-cloudpool-native"},
			files: []string{"cloudpool/rbac.yaml", "cloudpool/native.yaml"}, more: authorize,
		},
	} {
		want := slices.Concat(granted(t, c.roles, c.files...), c.more)
		slices.Sort(want)
		if diff := cmp.Diff(want, bare(needed(&Part{Kind: kind}))); diff != "" {
			t.Errorf("%s: in deploy/ (-), held to (+)\n%s", kind, diff)
		}
	}
}

func TestShippedRolesForPeopleHaveTheirRights(t *testing.T) {
	var reads []Right
	for reading, r := range readRights {
		if reading != readGroups && reading != readCaller { // everybody who is known to the API server has these
			reads = append(reads, r)
		}
	}
	want := granted(t, []string{"slipway-doctor", "slipway-doctor-ask-agents"}, "viewer/doctor.yaml")
	check.Equal(t, want, bare(reads))
	viewer := granted(t, []string{"slipway-viewer"}, "viewer/rbac.yaml")
	for _, right := range bare(viewerRights()) {
		if !slices.Contains(viewer, right) {
			t.Errorf("slipway-viewer has no right to %s", right)
		}
	}
}

func TestEveryRightSaysWhatItIsFor(t *testing.T) {
	all := slices.Concat(agentRights(), managerRights(&Part{}), cloudpoolRights(), viewerRights())
	for _, r := range readRights {
		all = append(all, r)
	}
	for _, r := range all {
		if r.For == "" || r.Verb == "" || r.Resource == "" {
			t.Errorf("%+v", r)
		}
	}
}

func TestDocsHaveARemedyForExactlyEveryRule(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("..", "..", "docs", "doctor.md"))
	must.NoError(t, err)
	sections := map[string]string{}
	for _, part := range strings.Split(string(raw), "\n### ")[1:] {
		name, body, _ := strings.Cut(part, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		sections[strings.Trim(name, "`")] = body
	}
	for _, rule := range Rules() {
		if body, ok := sections[rule.Name]; !ok || !strings.Contains(body, "**What to do.**") {
			t.Errorf("docs/doctor.md has no section with a remedy for the rule %s", rule.Name)
		}
		delete(sections, rule.Name)
	}
	for name := range sections {
		t.Errorf("docs/doctor.md has a section for %s, which is no rule", name)
	}
}
