package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/doctor"
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
		"report":                                    "no argument and no --since: want FILE, node/NAME or noderetirement/NAME, or --since",
		"report --until 1h":                         "no argument and no --since",
		"report --since 1h":                         "no kubeconfig with a cluster",
		"report --node n":                           "no kubeconfig with a cluster",
		"report " + in + " -o page.pdf":             `--output: "page.pdf": want html, json or yaml, or a file name that ends in .html, .json or .yaml`,
		"report " + in + " --since yesterday":       `--since: "yesterday": want a duration such as 1h, or a time such as 2026-01-31T12:00:00Z`,
		"report " + in + " --since 1h --until 2h":   `--until: "2h" is before --since "1h"`,
		"report nowhere.json":                       "nowhere.json: no such file or directory: want a file, node/NAME or noderetirement/NAME",
		"report --node a_b":                         `--node: node "a_b": want NAME or node/NAME`,
		"report node/a_b":                           `node "node/a_b": want NAME or node/NAME`,
		"report node/":                              `"node/": the name is empty: want node/NAME`,
		"report noderetirement.slipway.dev/a":       `no kubeconfig with a cluster`,
		"report " + in + " -o /nowhere/report.html": "--output: ",
	} {
		if _, err := runOffline(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("slipway %s: error %v, want one with %q", line, err, want)
		}
	}
}

// newReportReader returns a reader of a cluster with objects and the responses of an API server. The server cuts a response
// after limitBytes, as the kubelet does. A path without a response is forbidden. asked returns the URLs of the requests.
func newReportReader(t *testing.T, in *report.Inputs, responses map[string]string, objects ...client.Object) (r *clusterReader, asked func() string) {
	t.Helper()
	var mu sync.Mutex
	var urls []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		urls = append(urls, r.URL.String())
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		response := responses[r.URL.Path]
		if response == "" {
			w.WriteHeader(http.StatusForbidden)
		}
		if limit, err := strconv.Atoi(r.URL.Query().Get("limitBytes")); err == nil {
			response = response[:min(limit, len(response))]
		}
		_, _ = w.Write([]byte(response))
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

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newTestRetirement(node string, created time.Time, finished *metav1.Time) *v1alpha1.NodeRetirement {
	return &v1alpha1.NodeRetirement{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-x2m4z", CreationTimestamp: metav1.NewTime(created)}, Spec: v1alpha1.NodeRetirementSpec{NodeName: node},
		Status: v1alpha1.NodeRetirementStatus{Times: v1alpha1.PhaseTimes{Finished: finished}},
	}
}

func TestReportOfTimeRangeHasAllNodes(t *testing.T) {
	event := func(node, component, at string) string {
		return `{"metadata":{"name":"` + node + at + `","namespace":"default"},"reason":"Drained","lastTimestamp":"2026-03-01T` + at +
			`:00Z","involvedObject":{"kind":"Node","name":"` + node + `"},"source":{"component":"` + component + `"}}`
	}
	var in report.Inputs
	reader, asked := newReportReader(t, &in, map[string]string{
		"/api/v1/events": `{"kind":"EventList","apiVersion":"v1","items":[` + strings.Join([]string{
			event("node-1", "kubelet", "12:01"), event("node-6", "slipway-agent", "10:00"), event("node-7", "slipway-agent", "12:00"),
		}, ",") + "]}",
		"/api/v1/namespaces/ops/pods/agent-7/log":   `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"drain report","node":"node-7","report":` + drainReportJSON + "}\n",
		"/api/v1/namespaces/ops/pods/agent-1/log":   `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"guarding the node","node":"node-1"}` + "\n",
		"/api/v1/namespaces/ops/pods/manager-1/log": `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"retires","node":"node-9"}` + "\n",
	}, newOwnPod("agent-1", "agent", "node-1"), newOwnPod("agent-7", "agent", "node-7"), newOwnPod("manager-1", "manager", "node-1"),
		newTestRetirement("node-8", noon.Add(-2*time.Hour), new(metav1.NewTime(noon.Add(-time.Hour)))), newTestRetirement("node-9", noon.Add(-2*time.Hour), nil))
	r := timeRange{noon.Add(-time.Minute), noon.Add(time.Hour)}
	must.NoError(t, reader.readRange(t.Context(), r))
	built := report.Build(&in, report.Options{From: r.from, To: r.to})
	check.Equal(t, []report.NodeRecords{
		{Node: "node-7", Drains: 1, Events: 1}, {Node: "node-9", Retirements: 1}, {Node: "node-1", Events: 1},
	}, built.Nodes)
	problems := strings.Join(in.Problems(), "\n")
	check.Contains(t, problems, "no pod of the agent was found on 1 node, so its log is missing: node-9")
	check.Not(t, strings.Contains(problems, "manager") || strings.Contains(problems, "only"), "%s", problems)
	var logs []string
	for _, source := range built.Sources {
		if name, found := strings.CutPrefix(source.Name, "log of pod ops/"); found {
			logs = append(logs, name)
		}
	}
	check.Equal(t, []string{"manager-1", "agent-7", "agent-1"}, logs)
	check.Is(t, len(logs), strings.Count(asked(), "/log?"))
}

func TestReportOfTimeRangeSaysWhatItLeavesOut(t *testing.T) {
	var in report.Inputs
	var pods []client.Object
	responses := map[string]string{
		"/api/v1/events": `{"kind":"EventList","apiVersion":"v1","metadata":{"continue":"more"},"items":[{"reason":"Drained","involvedObject":{"kind":"Node","name":"n"}}]}`,
		"/api/v1/namespaces/ops/pods/manager/log": `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"first","node":"n"}` + "\n" + strings.Repeat("x", maxReportLogBytes),
	}
	for i := range maxReportAgents + 2 {
		name := fmt.Sprintf("agent-%02d", i)
		pods = append(pods, newOwnPod(name, "agent", "node-"+name))
		responses["/api/v1/namespaces/ops/pods/"+name+"/log"] = `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"guarding the node","node":"n"}` + "\n"
	}
	reader, asked := newReportReader(t, &in, responses, append(pods, newOwnPod("manager", "manager", ""))...)
	pages := 0
	reader.objects = interceptor.NewClient(reader.objects.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
			if all, ok := list.(*v1alpha1.NodeRetirementList); ok {
				pages++
				all.Items, all.Continue = []v1alpha1.NodeRetirement{*newTestRetirement(fmt.Sprint("n", pages), noon, nil)}, "more"
				return nil
			}
			return c.List(ctx, list, o...)
		},
	})
	must.NoError(t, reader.readRange(t.Context(), timeRange{from: noon}))
	check.Is(t, maxReportPages, pages)
	check.Is(t, 3*maxReportPages, strings.Count(asked(), "/api/v1/events?"))
	check.Is(t, 1+maxReportAgents, strings.Count(asked(), "/log?"))
	check.Contains(t, strings.Join(in.Problems(), "\n"), "NodeRetirements: only the first 20 by namespace and name were read: want node/NAME",
		"Events of Nodes: only the first 20 by", "Events of NodeGroups: only the first 20 by", "log of pod ops/manager: only its first 16384 KiB were read",
		"logs of agents: only those of 50 nodes were read, and not those of 2 other nodes, the first of which is node-agent-50")
	check.Contains(t, fmt.Sprint(report.Build(&in, report.Options{}).Trace), "first")
}

// The logs fill the rest of the limit in the order of the pods, also if the first one comes last.
func TestReportLimitsAllLogsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var pods []doctor.OwnPod
		var asked atomic.Int32
		log := strings.Repeat(`{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"guarding the node","node":"n"}`+"\n", 100)
		core, err := kubernetes.NewForConfig(&rest.Config{Host: "apiserver.test", QPS: -1, Transport: promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			if strings.Contains(r.URL.Path, "agent-00") {
				time.Sleep(time.Second)
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(log))}, nil
		})})
		must.NoError(t, err)
		for i := range 2 * maxConcurrentLogs {
			pods = append(pods, doctor.OwnPod{Namespace: "ops", Name: fmt.Sprintf("agent-%02d", i)})
		}
		var in report.Inputs
		reader := clusterReader{in: &in, core: core, logBytes: maxReportLogsBytes - int64(len(log)*3/2)}
		reader.readLogs(t.Context(), pods, "", noon)
		check.Is(t, maxReportLogsBytes, reader.logBytes)
		var lines []int
		for _, source := range report.Build(&in, report.Options{}).Sources {
			lines = append(lines, source.LogLines)
		}
		check.Equal(t, []int{100, 50}, lines)
		problems := in.Problems()
		check.Len(t, len(pods)-1, problems)
		check.Contains(t, problems[0], "log of pod ops/agent-01: only its first 4 KiB were read")
		check.Contains(t, problems[1], "log of pod ops/agent-02: was not read, because 64 MiB of other logs were")
		check.Is(t, maxConcurrentLogs+1, asked.Load())
	})
}

func TestReportLeavesOutLogsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, err := kubernetes.NewForConfig(&rest.Config{Host: "apiserver.test", QPS: -1, Transport: promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		must.NoError(t, err)
		var in report.Inputs
		var pods []doctor.OwnPod
		for i := range maxConcurrentLogs + 1 {
			pods = append(pods, doctor.OwnPod{Namespace: "ops", Name: fmt.Sprint("agent-", i)})
		}
		reader, start := clusterReader{in: &in, core: core}, time.Now()
		reader.readLogs(t.Context(), pods, "", noon)
		check.Is(t, 2*reportLogTimeout, time.Since(start)) // the last one waits for a place
		check.Len(t, len(pods), in.Problems())
		check.Contains(t, strings.Join(in.Problems(), "\n"), "log of pod ops/agent-0: ", "log of pod ops/agent-8: ", "deadline exceeded")
	})
}

func TestReportWithoutTimeRangeHasNewestLines(t *testing.T) {
	line := func(text string) string {
		return `{"time":"2026-03-01T12:00:09Z","level":"INFO","msg":"` + text + `","node":"n"}` + "\n"
	}
	var in report.Inputs
	reader, asked := newReportReader(t, &in, map[string]string{
		"/api/v1/namespaces/ops/pods/manager/log": line("oldest "+strings.Repeat("x", maxReportLogBytes/2)) +
			line("middle "+strings.Repeat("x", maxReportLogBytes/2)) + line("newest"),
	})
	reader.readLogs(t.Context(), []doctor.OwnPod{{Namespace: "ops", Name: "manager"}}, "n", time.Time{})
	check.Equal(t, []string{"log of pod ops/manager: only its last 16384 KiB were read: want --since"}, in.Problems())
	trace := fmt.Sprint(report.Build(&in, report.Options{}).Trace)
	for text, want := range map[string]bool{"oldest": false, "middle": true, "newest": true} {
		check.Is(t, want, strings.Contains(trace, text), text)
	}
	check.Contains(t, asked(), "tailLines=50000")
}

func TestReportFailsIfNothingCanBeRead(t *testing.T) {
	var in report.Inputs
	reader, _ := newReportReader(t, &in, nil)
	reader.objects = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
			return errors.New("no connection")
		},
	})
	if err := reader.readNode(context.Background(), "node-7", time.Time{}); err == nil || err.Error() != "no connection" {
		t.Errorf("%v", err)
	}
	reader, _ = newReportReader(t, &in, nil)
	must.NoError(t, reader.readNode(context.Background(), "node-7", time.Time{}))
	check.Contains(t, strings.Join(in.Problems(), "\n"), "no pod of the agent was found", "no pod of the manager was found")
}

func TestReportNamesNodeThatCannotBeRead(t *testing.T) {
	var in report.Inputs
	reader, _ := newReportReader(t, &in, nil)
	reader.objects = interceptor.NewClient(reader.objects.(client.WithWatch), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("the cache is not ready")
		},
	})
	must.NoError(t, reader.readNode(context.Background(), "node-7", time.Time{}))
	check.Contains(t, strings.Join(in.Problems(), "\n"), "node node-7: the cache is not ready")
}

func TestReportOfFileSelectsNode(t *testing.T) {
	in := filepath.Join(t.TempDir(), "drain.json")
	must.NoError(t, os.WriteFile(in, []byte(drainReportJSON), 0o600))
	for node, want := range map[string]string{
		"node/node-7": `"title": "Drain of node node-7"`,
		"node-8":      `"node node-8: the inputs have no drain, retirement or Event of it in the time range"`,
	} {
		out, err := runOffline(t, "report", in, "--node", node, "-o", "json")
		must.NoError(t, err)
		check.Contains(t, out, want)
	}
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
