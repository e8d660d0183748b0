package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// complete returns what the shell would be offered for a command line, without descriptions.
func complete(t *testing.T, words ...string) string {
	t.Helper()
	out, err := runOffline(t, append([]string{cobra.ShellCompNoDescRequestCmd}, words...)...)
	must.NoError(t, err)
	offered, _, _ := strings.Cut(out, ":")
	return strings.Join(strings.Fields(offered), " ")
}

// newTableServer serves tables with one column. It records what it is asked.
func newTableServer(t *testing.T, namesByPath map[string][]string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names, ok := namesByPath[r.URL.Path]
		if !ok || !strings.Contains(r.Header.Get("Accept"), "as=Table") {
			http.Error(w, r.URL.Path, http.StatusForbidden)
			return
		}
		var rows []string
		for _, name := range names {
			rows = append(rows, `{"cells":["`+name+`","Ready"]}`)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","rows":[` + strings.Join(rows, ",") + `]}`))
	}))
	t.Cleanup(s.Close)
	return s
}

func TestNamesAndValuesAreCompleted(t *testing.T) {
	s := newTableServer(t, map[string][]string{
		"/api/v1/nodes":                         {"ip-10-0-0-1.eu.internal", "node-1", "node-2"},
		"/api/v1/namespaces":                    {"default", "shop"},
		"/api/v1/namespaces/default/pods":       {"node-debug", "web-0"},
		"/api/v1/namespaces/shop/pods":          {"db-0"},
		"/apis/slipway.dev/v1alpha1/nodegroups": {"ci"},

		"/apis/slipway.dev/v1alpha1/noderetirements": {"node-1-x2m4z"},
	})
	for line, want := range map[string]string{
		"drain ":                   "ip-10-0-0-1.eu.internal node-1 node-2",
		"drain node-1 node":        "node-2",
		"drain node/n":             "node/node-1 node/node-2",
		"retire ip":                "ip-10-0-0-1.eu.internal",
		"retire node-1 ":           "",
		"why node":                 "node-1 node-2 node-debug",
		"why shop/":                "shop/db-0",
		"why pod/w":                "pod/web-0",
		"why pod/shop/d":           "pod/shop/db-0",
		"why hidden/":              "",
		"why d -n shop --output ":  "json yaml wide name",
		"version --output ":        "json yaml wide",
		"status ":                  "ci",
		"plan ":                    "",
		"plan -n s":                "shop",
		"plan --policy ":           "LeastDisruption LeastPods LeastLoaded Oldest",
		"drain node-1 --dry-run=":  "none client server",
		"drain node-1 --deadline ": "",
		"agent --on-preempt ":      "ignore acknowledge cordon drain-marked drain",
		"retire node-1 --reason ":  "Requested Idle Underutilized Surplus Notice InstanceGone NeverReady",
	} {
		words := strings.Split(line, " ")
		if words[0] != "agent" {
			words = append([]string{words[0], "--server", s.URL}, words[1:]...)
		}
		check.Is(t, want, complete(t, words...), line)
	}
	cmd := &cobra.Command{}
	newKubeFlags("report").addFlags(cmd.Flags())
	must.NoError(t, cmd.ParseFlags([]string{"--server", s.URL}))
	cmd.SetContext(t.Context())
	for prefix, want := range map[string]string{
		"": "node/ noderetirement/", "node": "node/ noderetirement/", "noderetirement/n": "noderetirement/node-1-x2m4z\tReady", "drain.json": "",
	} {
		found, _ := completeReportSubjects(cmd, nil, prefix)
		check.Is(t, want, strings.Join(found, " "), "report "+prefix)
	}
}

func TestCompletionIsSilentWithoutAPIServer(t *testing.T) {
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	defer hanging.Close()
	before := time.Now()
	check.Is(t, "", complete(t, "drain", "--server", hanging.URL, ""), "a server that does not answer")
	check.Not(t, time.Since(before) > time.Minute, "the completion waited %s", time.Since(before))
	check.Is(t, "", complete(t, "drain", ""), "no kubeconfig")
	check.Is(t, "", complete(t, "drain", "--kubeconfig", os.DevNull, ""), "an empty kubeconfig")
	check.Is(t, "", complete(t, "status", "--context", "other", ""), "a context that does not exist")
}

func TestContextsAreCompletedFromKubeconfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must.NoError(t, os.WriteFile(path, []byte("{kind: Config, apiVersion: v1, contexts: [{name: prod, context: {}}, {name: test, context: {}}]}"), 0o600))
	check.Is(t, "prod", complete(t, "status", "--kubeconfig", path, "--context", "p"))
}

// enumeration matches the end of a flag's usage that lists its values.
var enumeration = regexp.MustCompile(`(?:^|[:;] )([\w-]+(?:, [\w-]+)* or [\w-]+|[A-Z]\w+(?:, [A-Z]\w+)+)$`)

func TestEveryEnumeratedFlagIsCompleted(t *testing.T) {
	root := newRootCommand()
	found := 0
	visitCommands(root, func(c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			listed := enumeration.FindStringSubmatch(f.Usage)
			if listed == nil || f.Value.Type() != "string" {
				return
			}
			found++
			want := regexp.MustCompile(`[\w-]+`).FindAllString(strings.ReplaceAll(listed[1], " or ", " "), -1)
			complete, ok := c.GetFlagCompletionFunc(f.Name)
			if !ok {
				t.Errorf("%s --%s is not completed: %q", c.CommandPath(), f.Name, f.Usage)
				return
			}
			offered, _ := complete(c, nil, "")
			for _, value := range want {
				check.Contains(t, " "+strings.Join(offered, " ")+" ", " "+value+" ")
			}
			check.Is(t, len(want), len(offered), c.CommandPath()+" --"+f.Name)
		})
	})
	if found < 20 {
		t.Errorf("found only %d flags with listed values", found)
	}
}

func TestKubectlRunsCompletionByFileName(t *testing.T) {
	check.Is(t, "__complete retire ", strings.Join(completionArgs("/usr/bin/kubectl_complete-slipway", []string{"retire", ""}), " "))
	check.Is(t, "retire", strings.Join(completionArgs("/usr/bin/slipway", []string{"retire"}), " "))
}
