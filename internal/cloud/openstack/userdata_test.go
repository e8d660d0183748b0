package openstack

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
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
		if u, err := parseAndTestUserData(&GroupConfig{UserData: text}, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %+v, %v; want %q", text, u, err, want)
		}
	}
}

func TestUserDataIsRenderedForEachServer(t *testing.T) {
	text := "{{.Name}} {{.Labels | quote}} {{with .Join}}{{.Token}} {{.Server}}{{end}} {{.Join.Expires.Unix}}"
	u, err := parseAndTestUserData(&GroupConfig{UserData: text}, true)
	if err != nil || !u.needsJoin() {
		t.Fatalf("%+v, %v", u, err)
	}
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
