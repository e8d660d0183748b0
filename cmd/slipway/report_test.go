package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
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

// newReportReader returns a reader of a cluster with objects and the responses of an API server. A path without a response is
// forbidden. asked returns the URLs of the requests.
func newReportReader(t *testing.T, in *report.Inputs, responses map[string]string, objects ...client.Object) (r *clusterReader, asked func() string) {
	t.Helper()
	var mu sync.Mutex
	var urls []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		urls = append(urls, r.URL.String())
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		if responses[r.URL.Path] == "" {
			w.WriteHeader(http.StatusForbidden)
		}
		_, _ = w.Write([]byte(responses[r.URL.Path]))
	}))
	t.Cleanup(server.Close)
	core, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	must.NoError(t, err)
	scheme := runtime.NewScheme()
	must.NoError(t, errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)))
	return &clusterReader{in: in, core: core, objects: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()}, func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(urls, "\n")
	}
}

func newOwnPod(name, part, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ops", Labels: map[string]string{"app.kubernetes.io/name": "slipway-" + part}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "proxy"}, {Name: part}}},
	}
}

func TestReportReadsEventsAndLogsOfNode(t *testing.T) {
	var in report.Inputs
	reader, asked := newReportReader(t, &in, map[string]string{
		"/api/v1/events": `{"kind":"EventList","apiVersion":"v1","items":[{"metadata":{"name":"e","namespace":"default"},"reason":"Drained",` +
			`"message":"drained","lastTimestamp":"2026-03-01T12:00:09Z","involvedObject":{"kind":"Node","name":"node-7"}}]}`,
		"/api/v1/namespaces/ops/pods/agent-1/log": `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"drain report","node":"node-7","report":` + drainReportJSON + "}\n",
		"/api/v1/namespaces/ops/pods/manager-1/log": `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"about another","node":"node-8"}` + "\n" +
			`{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"about this one","node":"node-7"}` + "\n",
	}, newOwnPod("agent-1", "agent", "node-7"), newOwnPod("agent-2", "agent", "node-7"), newOwnPod("agent-8", "agent", "node-8"), newOwnPod("manager-1", "manager", "node-8"))
	must.NoError(t, reader.readNode(context.Background(), "node-7", time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)))
	r := report.Build(&in, report.Options{})
	if len(r.Drains) != 1 || len(r.Events) != 1 {
		t.Errorf("%d drains, %d Events, problems %q", len(r.Drains), len(r.Events), r.Problems)
	}
	check.Contains(t, strings.Join(r.Problems, "\n"), "log of pod ops/agent-2: ", "node node-7: the Node does not exist")
	check.Contains(t, fmt.Sprint(r.Trace), "about this one")
	check.Not(t, strings.Contains(fmt.Sprint(r.Trace), "about another"), "%v", r.Trace)
	check.Contains(t, asked(), "involvedObject.kind%3DNode%2CinvolvedObject.name%3Dnode-7", "agent-1/log?container=agent&", "manager-1/log?container=manager&",
		"sinceTime=2026-03-01T11%3A00%3A00Z")
	check.Not(t, strings.Contains(asked(), "agent-8"), "%s", asked())
}

func TestReportFailsIfNothingCanBeRead(t *testing.T) {
	var in report.Inputs
	reader, _ := newReportReader(t, &in, nil)
	reader.objects = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no connection")
		},
	})
	if err := reader.readNode(context.Background(), "node-7", time.Time{}); err == nil || !strings.Contains(err.Error(), "node/node-7: nothing can be read: no connection") {
		t.Errorf("%v", err)
	}
	reader, _ = newReportReader(t, &in, nil)
	must.NoError(t, reader.readNode(context.Background(), "node-7", time.Time{}))
	check.Contains(t, strings.Join(in.Problems(), "\n"), "no pod of the agent was found", "no pod of the manager was found")
}

func TestRangesOfSubjectsAreJoined(t *testing.T) {
	var in report.Inputs
	noon := metav1.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	hour := func(n int) *metav1.Time { return new(metav1.NewTime(noon.Add(time.Duration(n) * time.Hour))) }
	newRetirement := func(name string, from, to *metav1.Time) client.Object {
		return &v1alpha1.NodeRetirement{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: *from}, Spec: v1alpha1.NodeRetirementSpec{NodeName: "node-" + name},
			Status: v1alpha1.NodeRetirementStatus{Times: v1alpha1.PhaseTimes{Finished: to}},
		}
	}
	reader, _ := newReportReader(t, &in, nil, newRetirement("b", hour(5), hour(6)), newRetirement("a", hour(1), hour(2)), newRetirement("hangs", hour(3), nil))
	ranges := map[string]timeRange{"file": {}}
	for _, name := range []string{"a", "b", "hangs"} {
		r, err := reader.readRetirement(context.Background(), name, timeRange{})
		must.NoError(t, err)
		ranges[name] = r
	}
	for names, want := range map[string]timeRange{
		"b a":     {hour(1).Add(-reportMargin), hour(6).Add(reportMargin)},
		"a hangs": {hour(1).Add(-reportMargin), time.Time{}},
		"a file":  {},
	} {
		var all []timeRange
		for _, name := range strings.Fields(names) {
			all = append(all, ranges[name])
		}
		if from, to := joinRanges(all); !from.Equal(want.from) || !to.Equal(want.to) {
			t.Errorf("%s: from %s to %s, want %v", names, from, to, want)
		}
	}
	_, err := reader.readRetirement(context.Background(), "missing", timeRange{})
	if err == nil || strings.Contains(err.Error(), "CRDs are not installed") {
		t.Errorf("a retirement that does not exist: %v", err)
	}
}
