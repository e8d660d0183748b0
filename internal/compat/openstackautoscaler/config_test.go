package openstackautoscaler

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud/openstack"
	"github.com/slipway-dev/slipway/internal/manager"
	"github.com/slipway-dev/slipway/internal/nodegroup"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// sampleConfig is a typical configuration of the tool.
const sampleConfig = `CloudType: OpenStack
AuthOptions:
  IdentityEndpoint: https://keystone.example.com:5000/v3
  Username: autoscaler
  Password: secret
  TenantID: 2dde0802689b472198312db6b368a63c
  DomainName: Default
WorkerImageName: kube-worker-image
CoolDownTime: 600
MinNodeCount: 3
MaxNodeCount: 10
PassConfigToPlugin: false
Network:
  SecurityGroupName: kube
  NetworkUUID: 6f7a3c1e-0000-4000-8000-000000000001
OpenStackFlavours:
  DefaultFlavour: m1.medium
  Flavours:
    - Name: m1.small
      VCPU: 1
      Memory: 2048
    - Name: m1.large
      VCPU: 4
      Memory: 8192
`

func mustParse(t *testing.T, text string) Config {
	t.Helper()
	c, err := Parse([]byte(text))
	must.NoError(t, err)
	return c
}

func TestSampleIsRead(t *testing.T) {
	c := mustParse(t, sampleConfig)
	if c.AuthOptions.Password != "secret" || *c.MinNodeCount != 3 || c.CoolDown() != 10*time.Minute || len(c.OpenStackFlavours.Flavours) != 2 ||
		c.OpenStackFlavours.Flavours[1].Memory != 8192 {
		t.Errorf("%+v", c)
	}
	if len(c.Warnings) != 1 || !strings.HasPrefix(c.Warnings[0], "PassConfigToPlugin") {
		t.Errorf("warnings %q", c.Warnings)
	}
	path := filepath.Join(t.TempDir(), DefaultFile)
	check.ErrorContains(t, check.Err(Load(path)), path)
	must.NoError(t, os.WriteFile(path, []byte("CloudType: x\n"), 0o600))
	if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), path) {
		t.Errorf("an invalid file: %v", err)
	}
}

func TestI10FileErrorsNameField(t *testing.T) {
	for _, tc := range []struct{ old, text, want string }{
		{"CloudType: OpenStack", "CloudType: Openstack", `CloudType: "Openstack": want one of OpenStack, GCP, AWS, libvirt, Other`},
		{"CloudType: OpenStack\n", "", "CloudType:"},
		{"https://keystone.example.com:5000/v3", "keystone", "AuthOptions.IdentityEndpoint"},
		{"  Username: autoscaler\n", "", "AuthOptions.Username"},
		{"  Password: secret\n", "", "AuthOptions.Password"},
		{"secret", "<password>", "AuthOptions.Password"},
		{"  TenantID: 2dde0802689b472198312db6b368a63c\n", "", "AuthOptions.TenantID"},
		{"  DomainName: Default\n", "", "AuthOptions.DomainName"},
		{"WorkerImageName: kube-worker-image\n", "", "WorkerImageName"},
		{"  SecurityGroupName: kube\n", "", "Network.SecurityGroupName"},
		{"  NetworkUUID: 6f7a3c1e-0000-4000-8000-000000000001\n", "", "Network.NetworkUUID"},
		{"MinNodeCount: 3\n", "", "MinNodeCount: is missing"},
		{"MaxNodeCount: 10\n", "", "MaxNodeCount: is missing"},
		{"MaxNodeCount: 10", "MaxNodeCount: 2", "MinNodeCount: 3: want at most MaxNodeCount (2)"},
		{"MinNodeCount: 3", "MinNodeCount: -1", "MinNodeCount: -1"},
		{"MinNodeCount: 3", "MinNodeCount: three", `line 10: MinNodeCount: "three": want a whole number`},
		{"VCPU: 1", "VCPU: [1]", `OpenStackFlavours.Flavours[0].VCPU: a list: want a whole number`},
		{"  Password: secret", "  Password: {secret: secret}", `AuthOptions.Password: keys with values: want text`},
		{"  SecurityGroupName: kube\n  NetworkUUID: 6f7a3c1e-0000-4000-8000-000000000001\n", "  - kube\n", `Network: a list: want keys with values`},
		{"MinNodeCount: 3", "MinNodeCount: 2147483648", "MinNodeCount: 2147483648: want 0 to 2147483647 nodes"},
		{"MaxNodeCount: 10", "MaxNodeCount: 99999999999", "MaxNodeCount: 99999999999: want 1 to 2147483647 nodes"},
		{"MaxNodeCount: 10", "MaxNodeCount: 99999999999999999999", `line 11: MaxNodeCount: "99999999999999999999": want a whole number`},
		{"CoolDownTime: 600", "CoolDownTime: -1", "CoolDownTime: -1: want 0 to 31536000 seconds"},
		{"CoolDownTime: 600", "CoolDownTime: 99999999999999", "CoolDownTime: 99999999999999: want 0 to 31536000 seconds"},
		{"VCPU: 1", "VCPU: 0", "OpenStackFlavours.Flavours[0].VCPU: 0"},
		{"Memory: 8192", "Memory: 8192\n      Allocatable: {cpu: much}", `OpenStackFlavours.Flavours[1].Allocatable.cpu: "much": want 0 or more`},
		{"DefaultFlavour: m1.medium", "Reserved: {memory: -1Mi}", `OpenStackFlavours.Reserved.memory: "-1Mi": want 0 or more`},
		{"Memory: 8192", "Memory: -5", "OpenStackFlavours.Flavours[1].Memory: -5"},
		{"Name: m1.large", "Name: m1.small", `OpenStackFlavours.Flavours[1].Name: "m1.small": is a duplicate`},
		{"Name: m1.large", "Name: ''", "OpenStackFlavours.Flavours[1].Name"},
		{"Memory: 8192", "Memroy: 8192", "OpenStackFlavours.Flavours[1].Memroy: unknown key; did you mean OpenStackFlavours.Flavours[1].Memory?"},
		{"MaxNodeCount", "MaxNodesCount", "line 11: MaxNodesCount: unknown key; did you mean MaxNodeCount?"},
		{sampleConfig, "", "want keys with values"},
		{sampleConfig, "- a\n", "want keys with values"},
		{sampleConfig, "a: b: c", "mapping values"},
		{sampleConfig, sampleConfig + "---\nMaxNodeCount: 11\n", "line 26: a second YAML document: want one"},
		{sampleConfig, sampleConfig + "---\n---\n- x\n", "a second YAML document: want one"},
		{sampleConfig, sampleConfig + "---\na: b: c\n", "mapping values"},
		{"MaxNodeCount: 10", "MaxNodeCount: 10\nMaxNodeCount: 11", "already defined"},
		{"CloudType: OpenStack", "CloudType: GCP", "AuthOptions.ProjectName"},
		{"CloudType: OpenStack", "CloudType: AWS", "AuthOptions.AWSRegion"},
	} {
		text := strings.Replace(sampleConfig, tc.old, tc.text, 1)
		if text == sampleConfig {
			t.Fatalf("%q is not in the sample", tc.old)
		}
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q for %q: %v, want %q", tc.text, tc.old, err, tc.want)
		}
	}
	// All faults are reported together.
	_, err := Parse([]byte("CloudType: OpenStack\nColour: red\nMinNodeCount: 5\nMaxNodeCount: 4\n"))
	check.ErrorContains(t, err, "Colour", "MinNodeCount", "AuthOptions.Username", "WorkerImageName", "OpenStackFlavours.Flavours")
}

func TestEmptySecondDocumentIsAccepted(t *testing.T) {
	for _, text := range []string{sampleConfig + "---\n", sampleConfig + "...\n", "---\n" + sampleConfig, sampleConfig + "---\n# nothing\n"} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestControlPlaneIsNotCountedInGroupBounds(t *testing.T) {
	c := mustParse(t, sampleConfig)
	for _, tc := range []struct{ controlPlane, minimum, maximum int32 }{{0, 3, 10}, {1, 2, 9}, {3, 0, 7}, {11, 0, 0}} {
		g := c.ToNodeGroup(int(tc.controlPlane))
		if g.Spec.MinSize != tc.minimum || *g.Spec.MaxSize != tc.maximum {
			t.Errorf("with %d control plane nodes: %d to %d, want %d to %d", tc.controlPlane, g.Spec.MinSize, *g.Spec.MaxSize,
				tc.minimum, tc.maximum)
		}
	}
}

func TestFullControlPlaneIsReported(t *testing.T) {
	c := mustParse(t, sampleConfig)
	for controlPlane, full := range map[int]bool{0: false, 9: false, 10: true, 11: true} {
		text := c.FullControlPlaneWarning(controlPlane)
		want := ""
		if full {
			want = fmt.Sprintf("MaxNodeCount: 10: the control plane alone has %d nodes, so no machine is launched: want %d or more",
				controlPlane, controlPlane+1)
		}
		if noted := slices.Contains(c.migrationNotes(controlPlane), text); text != want || noted != full {
			t.Errorf("with %d nodes: %q, among the notes: %t, want %q", controlPlane, text, noted, want)
		}
	}
}

func TestGroupScalesLikeAutoscaler(t *testing.T) {
	c := mustParse(t, strings.Replace(sampleConfig, "CoolDownTime: 600", "CoolDownTime: 90", 1))
	g := c.ToNodeGroup(1)
	if g.Spec.ScaleUp == nil || g.Spec.ScaleUp.Policy != v1alpha1.FirstTemplate {
		t.Errorf("scaleUp is %+v, want the first flavour that helps", g.Spec.ScaleUp)
	}
	u := g.Spec.ScaleDown.Underutilized
	if *u.AllOf.CPUAtMost != 5 || u.AllOf.MemoryAtMost != nil || *u.AllOf.PodsAtMost != 5 || u.PodsAtMost != nil || u.Cooldown.Duration != 90*time.Second || u.Consolidate {
		t.Errorf("scaleDown.underutilized is %+v", u)
	}
	if errs := nodegroup.Validate(&g); len(errs) > 0 {
		t.Errorf("the group is invalid: %v", errs)
	}
}

func TestCloudConfigComesFromFile(t *testing.T) {
	c := mustParse(t, sampleConfig)
	config := c.ToCloudConfig("prod")
	if _, err := openstack.New(config, openstack.Options{}); err != nil {
		t.Fatal(err)
	}
	g := config.Groups[0]
	if a := config.Auth; a.URL != "https://keystone.example.com:5000/v3" || a.ProjectID != "2dde0802689b472198312db6b368a63c" || a.UserDomainName != "Default" {
		t.Errorf("%+v", a)
	}
	if config.Region != "" {
		t.Errorf("region %q: want none, not the autoscaler's LK", config.Region)
	}
	if !slices.Equal(g.Flavors, []string{"m1.small", "m1.large", "m1.medium"}) || g.AdoptNamePrefix != "kube-worker-" || g.NamePrefix != "kube-worker" ||
		g.Image.Name != "kube-worker-image" || g.SecurityGroups[0] != "kube" || g.Networks[0] != c.Network.NetworkUUID {
		t.Errorf("%+v", g)
	}
}

func TestMigratedFilesAreValidForManager(t *testing.T) {
	files, err := Migrate([]byte(sampleConfig), "prod", 1)
	must.NoError(t, err)
	byName := map[string]File{}
	directory := t.TempDir()
	for _, f := range files {
		byName[f.Name] = f
		must.NoError(t, os.WriteFile(filepath.Join(directory, f.Name), f.Content, 0o600))
		if hasPassword := strings.Contains(string(f.Content), "password: secret"); hasPassword != f.Secret {
			t.Errorf("%s contains the password: %t, Secret: %t", f.Name, hasPassword, f.Secret)
		}
		if strings.Contains(string(f.Content), GroupLabel) { // managers ignore objects with it
			t.Errorf("%s has the label of the compatibility mode: %s", f.Name, f.Content)
		}
	}
	groups, err := manager.ParseGroups(byName["nodegroups.yaml"].Content)
	if err != nil || len(groups) != 1 || groups[0].Spec.MinSize != 2 || *groups[0].Spec.MaxSize != 9 {
		t.Fatalf("%+v, %v in\n%s", groups, err, byName["nodegroups.yaml"].Content)
	}
	var clouds struct {
		OpenStack openstack.Config `json:"openstack"`
	}
	must.NoError(t, yaml.UnmarshalStrict(byName["cloud-config.yaml"].Content, &clouds))
	check.Is(t, "clouds.yaml", clouds.OpenStack.CloudsFile)
	t.Chdir(directory)
	p, err := openstack.New(clouds.OpenStack, openstack.Options{})
	if err != nil {
		t.Fatalf("%v with\n%s%s", err, byName["cloud-config.yaml"].Content, byName["clouds.yaml"].Content)
	}
	if p.Name() != groups[0].Spec.Cloud.Provider || clouds.OpenStack.Groups[0].Name != groups[0].Spec.Cloud.Group {
		t.Errorf("the NodeGroup is of %+v", groups[0].Spec.Cloud)
	}
	printed := string(FormatFiles(files))
	check.Contains(t, printed, "# File nodegroups.yaml", "---\n# File clouds.yaml", "#  ")
	for _, text := range []string{strings.Replace(sampleConfig, "OpenStack", "libvirt", 1), "x"} {
		if files, err := Migrate([]byte(text), "prod", 1); err == nil {
			t.Errorf("%q makes %+v", text, files)
		}
	}
	if files, err = Migrate([]byte(sampleConfig), "", 1); err != nil {
		t.Fatal(err)
	}
	if text := string(files[1].Content); !strings.Contains(text, "# clusterName: enter a name") || !strings.Contains(text, `clusterName: ""`) {
		t.Errorf("without a name: %s", text) // slipway manager refuses it
	}
	if _, err := Migrate([]byte(sampleConfig), "pro/d", 1); err == nil {
		t.Error("a cluster name with a slash passes")
	}
	if _, err := Migrate([]byte(sampleConfig), "prod", -1); err == nil {
		t.Error("a control plane of -1 passes")
	}
}

func TestEveryFaultHasMigrationNote(t *testing.T) {
	c := mustParse(t, strings.Replace(strings.Replace(sampleConfig, "CoolDownTime: 600\n", "", 1), "https:", "http:", 1))
	all := strings.Join(c.migrationNotes(1), "\n")
	check.Contains(t, all,
		"drained before their machine is deleted", "minSize now always holds", "restart does not reset", "DaemonSet", "one at a time", "in ERROR",
		"does not join", "500m", "1024·1000", "two namespaces", "taints", "LK built in", "with each call", "system UUID", "DefaultFlavour",
		"CoolDownTime", "in plain text",
	)
	check.Is(t, 10*time.Minute, c.CoolDown())
}

func FuzzParse(f *testing.F) {
	f.Add(sampleConfig)
	f.Add("CloudType: *x")
	f.Add("OpenStackFlavours: {Flavours: [1, {Name: [x]}]}")
	f.Add(strings.Replace(sampleConfig, "MaxNodeCount: 10", "MaxNodeCount: 99999999999", 1))
	f.Add(strings.Replace(sampleConfig, "CoolDownTime: 600", "CoolDownTime: 99999999999999", 1))
	f.Add(sampleConfig + "---\nMaxNodeCount: 11\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse([]byte(text))
		if err != nil {
			return
		}
		if *c.MinNodeCount > *c.MaxNodeCount {
			t.Errorf("%+v passes", c)
		}
		for _, controlPlane := range []int{0, 1, 3, math.MaxInt} {
			g := c.ToNodeGroup(controlPlane)
			if want := max(0, *c.MaxNodeCount-controlPlane); int(*g.Spec.MaxSize) != want || g.Spec.MinSize < 0 || g.Spec.MinSize > *g.Spec.MaxSize {
				t.Errorf("%d to %d with %d control plane nodes: %d to %d", *c.MinNodeCount, *c.MaxNodeCount, controlPlane,
					g.Spec.MinSize, *g.Spec.MaxSize)
			}
		}
		if d := c.CoolDown(); d < 0 || c.CoolDownTime != nil && d.Seconds() != float64(*c.CoolDownTime) {
			t.Errorf("a cooldown of %s", d)
		}
		_ = c.ToCloudConfig(DefaultCluster)
	})
}

func TestI10WrongTypeHidesNoOtherError(t *testing.T) {
	text := strings.NewReplacer("MinNodeCount: 3", "MinNodeCount: three", "  Username: autoscaler\n", "",
		"MaxNodeCount: 10", "MaxNodeCount: 0", "VCPU: 1", "VCPU: one").Replace(sampleConfig)
	_, err := Parse([]byte(text))
	for _, want := range []string{
		`MinNodeCount: "three": want a whole number`, `AuthOptions.Username: "": want a value`, "MaxNodeCount: 0: want 1",
		`OpenStackFlavours.Flavours[0].VCPU: "one": want a whole number`,
	} {
		if err == nil || strings.Count(err.Error(), want) != 1 {
			t.Errorf("no %q in %v", want, err)
		}
	}
	if err != nil && (strings.Contains(err.Error(), "MinNodeCount: is missing") || strings.Contains(err.Error(), "VCPU: 0")) {
		t.Errorf("a reported value has a second error: %v", err)
	}
}

func TestNodesReserveKubeadmDefaults(t *testing.T) {
	const flavors = "  DefaultFlavour: m1.medium\n"
	for text, want := range map[string]map[corev1.ResourceName]string{
		flavors: {"memory": "100Mi"},
		flavors + "  Reserved: {cpu: 200m, memory: 1Gi}\n": {"cpu": "200m", "memory": "1Gi"},
		flavors + "  Reserved: {}\n":                       {},
	} {
		c := mustParse(t, strings.Replace(sampleConfig, flavors, text, 1))
		got := c.ToCloudConfig("prod").Groups[0].Nodes.Reserved
		if got == nil || len(got) != len(want) {
			t.Fatalf("%q: reserved are %v, want %v", text, got, want)
		}
		for name, amount := range want {
			if q := got[name]; q.Cmp(resource.MustParse(amount)) != 0 {
				t.Errorf("%q: %s is %s, want %s", text, name, q.String(), amount)
			}
		}
		if templates := c.ToNodeGroup(1).Spec.ScaleUp.Templates; templates != nil {
			t.Errorf("%q: templates %+v, want none", text, templates)
		}
	}
	c := mustParse(t, strings.Replace(sampleConfig, "Memory: 2048", "Memory: 2048\n      Allocatable: {cpu: 900m, memory: 1800Mi}", 1))
	templates := c.ToNodeGroup(1).Spec.ScaleUp.Templates
	var names []string
	for _, template := range templates {
		names = append(names, template.Name)
	}
	if !slices.Equal(names, []string{"m1.small", "m1.large", "m1.medium"}) || templates[0].Allocatable.Cpu().MilliValue() != 900 ||
		templates[1].Allocatable != nil {
		t.Errorf("templates %+v", templates)
	}
}
