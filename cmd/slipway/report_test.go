package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/internal/report"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const drainReportJSON = `{"node":"node-7","outcome":"drained","startedAt":"2026-03-01T12:00:00Z","endedAt":"2026-03-01T12:00:09Z","pods":[` +
	`{"namespace":"shop","name":"web-1","uid":"u","decision":{"rule":"ordinary"},"action":"evict","end":"sideways","endedAt":"soon"}]}`

func TestReportOfFileIsWrittenDespiteProblems(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "drain.json"), filepath.Join(dir, "drain.html")
	must.NoError(t, os.WriteFile(in, []byte(drainReportJSON), 0o600))
	_, err := runOffline(t, "report", in, "-o", out)
	must.NoError(t, err)
	page, err := os.ReadFile(out)
	must.NoError(t, err)
	check.Contains(t, string(page), "<h1>Drain of node node-7</h1>", in+":1: field pods[0].endedAt: &#34;soon&#34; is ignored: want a time in RFC 3339")
	printed, err := runOffline(t, "report", in, "-o", "json", "--title", "Incident 5")
	var r report.Report
	if _, text, _ := strings.Cut(printed, "{"); err != nil || json.Unmarshal([]byte("{"+text), &r) != nil || r.Title != "Incident 5" || len(r.Drains) != 1 {
		t.Errorf("%v: %s", err, printed)
	}
}

func TestReportRefusesWrongArguments(t *testing.T) {
	in := filepath.Join(t.TempDir(), "drain.json")
	must.NoError(t, os.WriteFile(in, []byte(drainReportJSON), 0o600))
	for line, want := range map[string]string{
		"report":                                    "requires at least 1 arg",
		"report " + in + " -o page.pdf":             `--output: "page.pdf": want html, json or yaml, or a file name that ends in .html, .json or .yaml`,
		"report " + in + " --since yesterday":       `--since: "yesterday": want a duration such as 1h, or a time such as 2026-01-31T12:00:00Z`,
		"report " + in + " --since 1h --until 2h":   `--until: "2h" is before --since "1h"`,
		"report nowhere.json":                       "nowhere.json: no such file or directory: want a file, node/NAME or noderetirement/NAME",
		"report node/":                              `"node/": the name is empty: want node/NAME`,
		"report noderetirement.slipway.dev/a":       `no kubeconfig with a cluster`,
		"report " + in + " -o /nowhere/report.html": "--output: ",
	} {
		if _, err := runOffline(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("slipway %s: error %v, want one with %q", line, err, want)
		}
	}
}

func TestReportReadsEventsAndLogsOfNode(t *testing.T) {
	responses := map[string]string{
		"/api/v1/events": `{"kind":"EventList","apiVersion":"v1","items":[{"metadata":{"name":"e","namespace":"default"},"reason":"Drained",` +
			`"message":"drained","lastTimestamp":"2026-03-01T12:00:09Z","involvedObject":{"kind":"Node","name":"node-7"}}]}`,
		"/api/v1/pods": `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"agent-1","namespace":"ops"},"spec":{"containers":[{"name":"agent"}]}},` +
			`{"metadata":{"name":"agent-2","namespace":"ops"},"spec":{"containers":[{"name":"agent"}]}}]}`,
		"/api/v1/namespaces/ops/pods/agent-1/log": `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"drain report","node":"node-7","report":` + drainReportJSON + "}\n",
	}
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		w.Header().Set("Content-Type", "application/json")
		if responses[r.URL.Path] == "" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = w.Write([]byte(responses[r.URL.Path]))
	}))
	defer server.Close()
	core, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	must.NoError(t, err)
	var in report.Inputs
	o := report.Options{From: time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)}
	reader := clusterReader{in: &in, core: core}
	must.NoError(t, reader.readNodeRecords(context.Background(), "node-7", nil, &o))
	r := report.Build(&in, o)
	if len(r.Drains) != 1 || len(r.Events) != 1 || !strings.Contains(strings.Join(r.Problems, "\n"), "log of pod ops/agent-2: ") {
		t.Errorf("%d drains, %d Events, problems %q", len(r.Drains), len(r.Events), r.Problems)
	}
	for _, want := range []string{
		"involvedObject.kind%3DNode%2CinvolvedObject.name%3Dnode-7", "fieldSelector=spec.nodeName%3Dnode-7&labelSelector=app.kubernetes.io%2Fname%3Dslipway-agent",
		"labelSelector=app.kubernetes.io%2Fname%3Dslipway-manager", "sinceTime=2026-03-01T11%3A00%3A00Z",
	} {
		if !strings.Contains(strings.Join(asked, "\n"), want) {
			t.Errorf("no request with %s in %q", want, asked)
		}
	}
}
