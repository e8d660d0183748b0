package openstack

import (
	"crypto/sha256"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestI10UnknownUserDataFieldIsRefusedAtStart(t *testing.T) {
	for text, want := range map[string]string{
		"{{.Nickname}}": `Machine has no field "Nickname": want one of Name, Cluster`,
		`{{if eq .Zone "never"}}{{.Nickname}}{{end}}`:  "Nickname", // a branch that the example does not take
		"{{if .Zone}}a{{else}}{{.Join.Tokn}}{{end}}":   `Join has no field "Tokn"`,
		"{{with .Join}}{{.Tokn}}{{end}}":               "Tokn",
		"{{with .Join}}{{$.Nickname}}{{end}}":          "Nickname",
		"{{.Join.Token.Value}}":                        `string has no field "Value": want none`,
		"{{range $i := until 0}}{{$.Nickname}}{{end}}": "Nickname",
		"{{.Name":                              "unclosed action",
		"{{env \"HOME\"}}":                     `function "env" not defined`,
		"{{template \"x\"}}":                   `"x"`,
		"{{fail \"no\"}}":                      "no",
		strings.Repeat("x", maxUserData/4*3+3): "want at most",
		"{{define \"m\"}}{{.Foo}}{{end}}{{template \"m\" .}}": "Foo",
	} {
		u, err := parseAndTestUserData(&GroupConfig{UserData: text}, true)
		check.Not(t, err == nil || !strings.Contains(err.Error(), want), "%.60q: %+v, %v; want %q", text, u, err, want)
	}
}

func TestUserDataIsRenderedForEachServer(t *testing.T) {
	text := "{{.Name}} {{.Labels | quote}} {{with .Join}}{{.Token}} {{.Server}}{{end}} {{.Join.Expires.Unix}}"
	u, err := parseAndTestUserData(&GroupConfig{UserData: text}, true)
	must.Not(t, err != nil || !u.needsJoin(), "%+v, %v", u, err)
	m := exampleMachine()
	m.Name, m.Labels = "a-1", labels.Set{"b": "2", "a": "1"}.String()
	if got, err := u.render(m); err != nil || string(got) != `a-1 "a=1,b=2" abcdef.0123456789abcdef 192.0.2.1:6443 0` {
		t.Errorf("%q, %v", got, err)
	}
	check.Is(t, "a=:NoExecute,k=v:NoSchedule", formatTaints([]corev1.Taint{{Key: "k", Value: "v", Effect: corev1.TaintEffectNoSchedule}, {Key: "a", Effect: "NoExecute"}}))
	for text, want := range map[string]bool{
		"plain": false, "{{.Name}}": false, "{{.Join.Token}}": true, "{{if .Join.Token}}x{{end}}": true, "{{$.Join.Server}}": true,
		"{{. | toJson}}": true, "{{$j := .Join}}{{$j.Token}}": true,
	} {
		if u, err := parseAndTestUserData(&GroupConfig{UserData: text}, true); err != nil || u.needsJoin() != want {
			t.Errorf("%q joins: %t, %v", text, u.needsJoin(), err)
		}
	}
	if _, err := (&userData{template: u.template}).render(Machine{Name: strings.Repeat("x", maxUserData)}); cloud.RefusalOf(err) != cloud.Invalid {
		t.Errorf("too large: %v", err)
	}
}

func FuzzUserData(f *testing.F) {
	f.Add("{{.Name}}{{with .Join}}{{.Token}}{{end}}")
	f.Add("{{range $a, $b := .}}{{end}}{{$.Join.Expires.Year.Foo}}")
	f.Add("{{(index . 1).X.Y}}{{.Name | printf \"%d\"}}")
	f.Fuzz(func(_ *testing.T, text string) {
		if u, err := parseUserData(text); err == nil {
			_ = u.needsJoin()
		}
	})
}

// TestDocumentedUserDataRenders checks that the examples are valid templates with valid cloud-init and agent
// configuration.
func TestDocumentedUserDataRenders(t *testing.T) {
	page, err := os.ReadFile("../../../docs/openstack.md")
	must.NoError(t, err)
	m := exampleMachine()
	secure := fmt.Sprintf("K10%x::%s", sha256.Sum256([]byte(m.Join.CACert)), m.Join.Token)
	rendered := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(#cloud-config\n.*?)```").FindAllStringSubmatch(string(page), -1) {
		u, err := parseUserData(block[1])
		if err != nil {
			t.Fatalf("%v in\n%s", err, block[1])
		}
		for _, labels := range []string{"", "pool=web,disk=fast"} {
			m.Labels, m.Taints = labels, strings.ReplaceAll(labels, "=", "=x:NoSchedule")
			out, err := u.render(m)
			if err != nil {
				t.Fatalf("%v in\n%s", err, block[1])
			}
			var config struct {
				Files []struct{ Path, Content string } `json:"write_files"`
				Run   []string                         `json:"runcmd"`
			}
			if err := yaml.Unmarshal(out, &config); err != nil || len(config.Files) != 1 || len(config.Run) == 0 {
				t.Fatalf("%+v, %v of\n%s", config, err, out)
			}
			path := config.Files[0].Path
			rendered[path] = true
			var file struct {
				Server, Token string
				Labels        []string `json:"node-label"`
				Taints        []string `json:"node-taint"`
			}
			if err := yaml.Unmarshal([]byte(config.Files[0].Content), &file); err != nil {
				t.Fatalf("%s: %v in\n%s", path, err, out)
			}
			count := map[string]int{"": 0, "pool=web,disk=fast": 2}[labels]
			if strings.Contains(path, "rancher") && (file.Server != "https://"+m.Join.Server || file.Token != secure ||
				len(file.Labels) != count || len(file.Taints) != count) {
				t.Errorf("%s: %+v, want the token %s and %d labels", path, file, secure, count)
			}
		}
	}
	for _, path := range []string{"/etc/kubernetes/join.yaml", "/etc/rancher/k3s/config.yaml", "/etc/rancher/rke2/config.yaml"} {
		check.Not(t, !rendered[path], "no example writes %s", path)
	}
}
