package notify

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

func overwrite(t testing.TB, path, content string) {
	t.Helper()
	must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

// renderSample renders a template for a sample.
func renderSample(t testing.TB, text string) string {
	t.Helper()
	tpl, err := compileTemplate("template", text, func(string) (string, error) { return "", nil })
	must.NoError(t, err)
	out, err := renderTemplate(tpl, NewSampleMessage(Detected, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
	must.NoError(t, err)
	return out
}

func TestTemplateFieldsHaveTheirValues(t *testing.T) {
	for marker, want := range map[string]string{
		".Event.EventId":                         "602d9444-d2cd-49c7-8624-8643e7171297",
		".Event.EventType":                       "Preempt",
		".Event.ResourceType":                    "VirtualMachine",
		".Event.Resources":                       "[aks-spot-12345678-vmss_0]",
		".Event.EventStatus":                     "Scheduled",
		".Event.NotBefore":                       "Fri, 02 Jan 2026 03:04:35 GMT",
		".Event.Description":                     "This is a test. Nothing happens to the machine.",
		".Event.EventSource":                     "Platform",
		".Event.DurationInSeconds":               "-1",
		".NodeName":                              "aks-spot-12345678-vmss000000",
		`index .NodeLabels "kubernetes.io/role"`: "agent",
		".NodeLabels.missing":                    "",
		".ClusterName":                           "MC_group_cluster_westeurope",
		".InstanceType":                          "Standard_D4s_v5",
		".NodeArch":                              "amd64",
		".NodeOS":                                "linux",
		".NodeRole":                              "agent",
		".NodeRegion":                            "westeurope",
		".NodeZone":                              "westeurope-1",
		".NodePods":                              "[web-7d9c5b8f6d-x2x4z orders-db-0]",
		`join "," .NodePods`:                     "web-7d9c5b8f6d-x2x4z,orders-db-0",
		".Moment":                                "detected",
		".SecondsLeft":                           "30",
		`.Deadline.Format "15:04:05"`:            "03:04:35",
		`date "2006-01-02" .Time`:                "2026-01-02",
		"(index .Pods 0).Namespace":              "shop",
		"(index .Pods 0).Owner":                  "ReplicaSet/web-7d9c5b8f6d",
		"len .Blocked":                           "0",
		".Test":                                  "true",
		".Source":                                "azure",
		".Action":                                "drain",
		".Forced":                                "true",
		"toJson .NodePods":                       `["web-7d9c5b8f6d-x2x4z","orders-db-0"]`,
		`eq .Moment "detected"`:                  "true",
	} {
		if got := renderSample(t, "{{ "+marker+" }}"); got != want {
			t.Errorf("%s: %q, want %q", marker, got, want)
		}
	}
}

func TestW21TextIsNotEscapedAsHTML(t *testing.T) {
	const text = `{"text":"<https://x.example/?a=1&b=2|it's + it>"}`
	if got := renderSample(t, text+`{{ "+<&'\"" }}`); got != text+`+<&'"` {
		t.Errorf("%s", got)
	}
	if got := renderSample(t, `{{ toJson "<&>" }}`); got != `"<&>"` {
		t.Errorf("toJson: %s", got)
	}
}

func TestTemplatesCannotReadTheMachineOrNetwork(t *testing.T) {
	for _, call := range []string{`env "HOME"`, `expandenv "$HOME"`, `getHostByName "localhost"`} {
		_, err := compileTemplate("template", "{{ "+call+" }}", nil)
		if err == nil || !strings.Contains(err.Error(), "not defined") {
			t.Errorf("%s: error %v", call, err)
		}
	}
}

func TestBadTemplateFailsAtStartWithItsPosition(t *testing.T) {
	for _, c := range []struct {
		name, template string
		want           []string
	}{
		{"not closed", "line\n{{ .NodeName", []string{"webhook.template:2", "unclosed action"}},
		{"an unknown field", "line\n  {{ .NodeNam }}", []string{"webhook.template:2:5", ".NodeNam"}},
		{"an unknown field below", "{{ .Event.EventID }}", []string{"webhook.template:1:9", "EventID"}},
		{"an unknown field at one moment", `{{ if eq .Moment "over" }}{{ .Nope }}{{ end }}`, []string{"webhook.template:1:29", ".Nope"}},
		{"an unknown function", "{{ shout .NodeName }}", []string{"webhook.template:1", `"shout" not defined`}},
		{"an unknown secret", `{{ secret "key" }}`, []string{"webhook.template:1:3", `secret "key": want a name in webhook.secretFiles`}},
		{"out of range", "{{ index .Pods 9 }}", []string{"webhook.template:1:3", "out of range"}},
		{"much output", `{{ range until 1000 }}{{ repeat 10000 "x" }}{{ end }}`, []string{"template: webhook.template: ", "more than 1048576 bytes"}},
		{"much at once", `{{ repeat 2000000000 "x" }}`, []string{"webhook.template:1:3", "more than 1048576 bytes"}},
		{"many numbers", `{{ until 2000000000 }}`, []string{"webhook.template:1:3", "10000"}},
		{"wide margins", `{{ indent 2000000000 "x" }}`, []string{"webhook.template:1:3", "more than 1048576 bytes"}},
		{"without end", `{{ define "a" }}{{ template "a" }}{{ end }}{{ template "a" }}`, []string{"webhook.template:1", "exceeded maximum template depth"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			good, bad := webhook("http://h"), webhook("http://h")
			good.Name, bad.Name, bad.Webhook.Template = "good", "bad", c.template
			_, err := NewNotifier([]Receiver{good, bad}, Options{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(c.want, "notifications[1] (bad)") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q, want it to contain %q", err, want)
				}
			}
		})
	}
}

func TestBadAddressOrFileTemplateFailsAtStart(t *testing.T) {
	fromFile := Receiver{Name: "x", Webhook: &Webhook{URL: "http://h", Body: Body{TemplateFile: writeTempFile(t, "{{ .Nope }}")}}}
	chat := Receiver{Name: "x", Telegram: &Telegram{Token: "1:abc", ChatID: "1", Body: Body{Template: "{{ .Nope }}"}}}
	for _, c := range []struct {
		name string
		r    Receiver
		want string
	}{
		{"address", webhook("http://h/{{ .Nope }}"), "webhook.url:1:12"},
		{"address at one moment", webhook(`http://{{ if eq .Moment "detected" }}h{{ end }}/`), "webhook.url: no host"},
		{"address that is none", webhook("{{ .NodeName }}"), "webhook.url"},
		{"file", fromFile, "webhook.templateFile:1:3"},
		{"template beside a missing secret", Receiver{Name: "x", Webhook: &Webhook{URL: "http://h", Body: Body{
			SecretFiles: map[string]string{"k": "/nonexistent"}, Template: `{{ if eq .Moment "over" }}{{ .Nope }}{{ end }}{{ secret "k" }}`,
		}}}, "webhook.template:1:29"},
		{"address beside a missing password", Receiver{Name: "x", Webhook: &Webhook{
			URL: `http://{{ if eq .Moment "detected" }}h{{ end }}/`, BasicAuth: &BasicAuth{"u", "/nonexistent"},
		}}, "webhook.url: no host"},
		{"empty CA", Receiver{Name: "x", Webhook: &Webhook{URL: "http://h", Connection: Connection{CAFile: writeTempFile(t, "x")}}}, "has no certificate"},
		{"Telegram", chat, "telegram.template:1:3"},
		{"empty text for Telegram", Receiver{Name: "x", Telegram: &Telegram{Token: "1:abc", ChatID: "1", Body: Body{Template: " {{- /* */ -}} "}}}, "telegram.template: its output is empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := NewNotifier([]Receiver{c.r}, Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestMissingFileDelaysOnlyItsMessages has files that are created after the start, for example by a Secret.
func TestMissingFileDelaysOnlyItsMessages(t *testing.T) {
	b := newInbox(t, nil)
	hook := func(change func(w *Webhook)) Receiver {
		r := webhook(b.URL)
		change(r.Webhook)
		return r
	}
	path := filepath.Join(t.TempDir(), "file")
	for field, c := range map[string]struct {
		r       Receiver
		content string
	}{
		"webhook.templateFile: ": {hook(func(w *Webhook) { w.Body = Body{TemplateFile: path} }), "{{ .Moment }}"},
		`at <secret "k">: `: {hook(func(w *Webhook) {
			w.Body = Body{Template: `{{ secret "k" }}`, SecretFiles: map[string]string{"k": path}}
		}), "a"},
		"webhook.urlFile: ":                {hook(func(w *Webhook) { w.URL, w.URLFile = "", path }), b.URL},
		"webhook.bearerTokenFile: ":        {hook(func(w *Webhook) { w.BearerTokenFile = path }), "a"},
		"webhook.basicAuth.passwordFile: ": {hook(func(w *Webhook) { w.BasicAuth = &BasicAuth{"u", path} }), "a"},
		"webhook.caFile: ":                 {hook(func(w *Webhook) { w.CAFile = path }), certificateOf(newTLSInbox(t).Server)},
		"webhook.proxyPasswordFile: ": {hook(func(w *Webhook) {
			w.URL, w.Proxy, w.ProxyPasswordFile = "http://h", strings.Replace(b.URL, "://", "://u@", 1), path
		}), "a"},
		"telegram.tokenFile: ": {Receiver{Name: "chat", Telegram: &Telegram{URL: b.URL, TokenFile: path, ChatID: "1"}}, "1:abc"},
	} {
		for _, lenient := range []bool{false, true} {
			sent := len(b.all())
			var log logged
			n, err := NewNotifier([]Receiver{c.r}, Options{Log: log.logger(), WarnOnInvalidTemplates: lenient})
			must.NoError(t, err)
			if got := log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(strings.ReplaceAll(got, `\"`, `"`), field) || !strings.Contains(got, path) {
				t.Errorf("%s the log at the start is %q", field, got)
			}
			err = n.SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now()))
			if err == nil || !strings.Contains(err.Error(), path) || strings.Contains(log.String(), "will retry") || len(b.all()) != sent {
				t.Errorf("%s: without the file: %v, log %q", field, err, log.String())
			}
			overwrite(t, path, c.content)
			must.NoError(t, n.SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now())))
			if len(b.all()) != sent+1 {
				t.Errorf("%s nothing was sent", field)
			}
			must.NoError(t, os.Remove(path))
		}
	}
}

func TestInvalidTemplateFileKeepsTheLastValidOne(t *testing.T) {
	b := newInbox(t, nil)
	path := writeTempFile(t, "first {{ .Moment }}")
	r := Receiver{Name: "hook", Webhook: &Webhook{URL: b.URL, Body: Body{TemplateFile: path}}}
	var log logged
	n := newNotifier(t, Options{Log: log.logger()}, r)
	for _, c := range []struct{ content, want string }{
		{"first {{ .Moment }}", "first detected\n"},
		{"second {{ .Moment }}", "second detected\n"},
		{"third {{ .Nope }}", "second detected\n"},
		{"fourth", "fourth\n"},
	} {
		overwrite(t, path, c.content)
		must.NoError(t, n.SendToAllNow(t.Context(), NewSampleMessage(Detected, time.Now())))
		if got := b.all(); got[len(got)-1].body != c.want {
			t.Errorf("%s: sent %q, want %q", c.content, got[len(got)-1].body, c.want)
		}
	}
	if !strings.Contains(log.String(), "the last good one stands") || !strings.Contains(log.String(), ".Nope") {
		t.Errorf("log: %s", log.String())
	}
}

func TestLimitedFunctionsBehaveLikeSprig(t *testing.T) {
	for call, want := range map[string]string{
		`until 3`: "[0 1 2]", `untilStep 3 9 3`: "[3 6]", `untilStep 3 0 -1`: "[3 2 1]", `untilStep 0 1 0`: "[]",
		`repeat 2 "ab"`: "abab", `indent 2 "a\nb"`: "  a\n  b", `len (randAlphaNum 5)`: "5",
	} {
		if got := renderSample(t, "{{ "+call+" }}"); got != want {
			t.Errorf("%s: %q, want %q", call, got, want)
		}
	}
}

func TestEveryFieldOfASampleIsSet(t *testing.T) {
	raw, err := json.Marshal(NewSampleMessage(Blocked, time.Now()))
	must.NoError(t, err)
	var m map[string]any
	must.NoError(t, json.Unmarshal(raw, &m))
	for name, v := range m {
		if s := fmt.Sprint(v); s == "" || s == "[]" || s == "map[]" || s == "<nil>" || s == "false" {
			t.Errorf("%s: %v", name, v)
		}
	}
}

func FuzzATemplateIsTakenOrRefused(f *testing.F) {
	for _, s := range []string{
		"", "{{ . }}", "{{ toJson . }}", "{{ .Nope }}", "{{ index .Pods 3 }}", `{{ repeat -1 "x" }}`, "{{ nindent 3 .NodeName }}",
		`{{ printf "%1000000d" 3 }}`, `{{ template "x" }}`, `{{ secret "a" }}`, "{{ with .Event }}{{ .EventId | b64enc | sha256sum }}{{ end }}",
		`{{ substr -1 -1 "x" }}`, `{{ .Deadline.Format "x" }}`, `{{ splitn "" 3 "a" }}`, `{{ regexReplaceAll "(" "a" "b" }}`, "{{ div 1 0 }}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		// These functions only use much CPU time of the author's own agent, and are slow to test.
		for _, costly := range []string{"range", "genCA", "genSelf", "genSigned", "genPrivate", "bcrypt", "htpasswd", "derive", "template", "block"} {
			if strings.Contains(text, costly) {
				return
			}
		}
		r := webhook("http://h")
		r.Webhook.Template = text
		n, err := NewNotifier([]Receiver{r}, Options{})
		if err != nil {
			if !strings.Contains(err.Error(), "notifications[0] (hook)") {
				t.Errorf("error %v", err)
			}
			return
		}
		for _, m := range defaultMoments() {
			if _, err := n.workers[0].writer.newMessageRequest(NewSampleMessage(m, time.Now())); err != nil && text != "" && !strings.Contains(text, "now") {
				t.Errorf("%q was accepted, but fails: %v", text, err)
			}
		}
	})
}

func TestNoFunctionReplacesABuiltin(t *testing.T) {
	ours := newFunctions(func(string) (string, error) { return "", nil })
	for _, name := range textTemplateFunctionNames() {
		if ours[name] != nil {
			t.Errorf("%s is replaced", name)
		}
		if _, err := template.New("").Parse("{{ " + name + " 1 }}"); err != nil {
			t.Errorf("%s is not a builtin: %v", name, err)
		}
	}
	for text, want := range map[string]string{
		`{{ slice .NodeName 0 3 }}`:         "aks",
		`{{ slice .NodePods 0 1 }}`:         "[web-0]",
		`{{ slice (list "a" "b" "c") 1 }}`:  "[b c]",
		`{{ slice .Event.NotBefore 5 16 }}`: "01 Sep 2026",
	} {
		m := Message{NodeName: "aks-spot", NodePods: []string{"web-0", "web-1"}, Event: Event{NotBefore: "Tue, 01 Sep 2026 12:00:00 GMT"}}
		compiled, err := compileTemplate("template", text, nil)
		must.NoError(t, err)
		if got, err := renderTemplate(compiled, m); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
}
