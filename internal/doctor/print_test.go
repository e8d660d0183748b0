package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/internal/testing/golden"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newTroubledCluster returns a cluster with many findings.
func newTroubledCluster() *Facts {
	f := newInstallation()
	for i := range 7 {
		f.Nodes = append(f.Nodes, newAzureNode(fmt.Sprintf("node-%d", i)))
	}
	f.PDBs = []*policyv1.PodDisruptionBudget{
		newPDB("web", "web", nil, none), newPDB("web-too", "web", nil, one), newPDB("typo", "wbe", nil, one),
	}
	f.Pods = append(f.Pods, newReplica("web-1", "web"), newPod("shop", "debug", nil))
	f.Deployments = append(f.Deployments, newDeployment("shop", "web", 1))
	f.DaemonSets = append(f.DaemonSets, newDaemonSet("kured", "ghcr.io/kubereboot/kured:1.20"))
	f.PartAccess = newAccess(f.partsOfKind(Agent)[0], listAgentRights(), "create pods/eviction", "patch nodes")
	f.LeaderLeases, f.parts = nil, nil
	f.ReadErrors[nodeLeasesReading] = newForbiddenError("leases")
	f.ReadErrors[statefulSetsReading] = errors.New("the server is on fire")
	return f
}

func TestReportsMatchGoldenFiles(t *testing.T) {
	for name, f := range map[string]*Facts{"troubled": newTroubledCluster(), "well": newInstallation(), "bare": newEmptyCluster()} {
		r := Diagnose(f)
		var text, wide bytes.Buffer
		must.NoError(t, errors.Join(r.Print(&text, false), r.Print(&wide, true)))
		golden.Check(t, filepath.Join("testdata", name+".txt"), text.Bytes())
		if name != "troubled" {
			continue
		}
		golden.Check(t, filepath.Join("testdata", name+"-wide.txt"), wide.Bytes())
		data, err := json.MarshalIndent(r, "", "  ")
		must.NoError(t, err)
		golden.Check(t, filepath.Join("testdata", name+".json"), append(data, '\n'))
	}
}

func TestEachForbiddenReadIsAFinding(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`))
	}))
	defer server.Close()
	f, err := ReadFacts(t.Context(), &rest.Config{Host: server.URL, QPS: -1}, Options{AskAgents: true})
	must.NoError(t, err)
	r := Diagnose(f)
	for reading, right := range rightsByReading {
		switch reading {
		case partAccessReading, leaderLeasesReading, metricsReading:
			continue // without parts nothing is queried
		}
		if !strings.Contains(fmt.Sprint(r.Findings), "you may not "+right.String()) {
			t.Errorf("no finding for %s", right)
		}
	}
	if len(r.Unchecked) == 0 || f.ReadErrors[clockReading] != nil {
		t.Errorf("%+v, clock %v", r.Unchecked, f.ReadErrors[clockReading])
	}
}

func TestInvalidServerResponseIsAProblem(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", "yesterday")
		_, _ = w.Write([]byte(`{"kind":"Teapot"`))
	}))
	defer server.Close()
	f, err := ReadFacts(t.Context(), &rest.Config{Host: server.URL, QPS: -1}, Options{})
	must.NoError(t, err)
	if r := Diagnose(f); r.CountFindings(Problem) == 0 || f.ReadErrors[clockReading] == nil {
		t.Errorf("%+v", r)
	}
}

// newAgentServer returns an API server that serves an agent's metrics.
func newAgentServer(t *testing.T, status int, body string) *reader {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if want := "/api/v1/namespaces/slipway/pods/slipway-agent-node-a:9818/proxy/metrics"; r.URL.Path != want {
			t.Errorf("request for %s, want %s", r.URL.Path, want)
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	f := newInstallation()
	f.LastReads = map[Key]LastRead{}
	r, err := newReader(&rest.Config{Host: server.URL, QPS: -1}, f)
	must.NoError(t, err)
	return r
}

func TestAgentsReportTheirLastRead(t *testing.T) {
	key := Key{"slipway", "slipway-agent-node-a"}
	r := newAgentServer(t, http.StatusOK, "# HELP x\n"+lastReadMetric+`{source="gce-spot"} 1.6e9`+"\n"+lastReadMetric+`{source="gce-host"} 1.5e9`+"\n")
	r.runTasks(t.Context(), r.newAgentMetricsTasks())
	if got := r.facts.LastReads[key]; got.Err != nil || got.Source != "gce-host" || !got.At.Equal(time.Unix(1_500_000_000, 0)) {
		t.Errorf("%+v", got)
	}
	for body, want := range map[string]LastRead{
		lastReadMetric + " 1.5e9": {At: time.Unix(1_500_000_000, 0)},
		lastReadMetric + `{source="aws-spot"} 1.5e9` + "\n" + lastReadMetric + `{source="aws-events"} 0`: {Source: "aws-events"},
		"# TYPE " + lastReadMetric + " gauge": {},
	} {
		if got, err := parseLastNoticeRead([]byte(body + "\n")); err != nil || got.Source != want.Source || !got.At.Equal(want.At) {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
	r = newAgentServer(t, http.StatusServiceUnavailable, "no route")
	r.runTasks(t.Context(), r.newAgentMetricsTasks())
	if got := r.facts.LastReads[key]; got.Err == nil {
		t.Errorf("%+v", got)
	}
	r = newAgentServer(t, http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","reason":"Forbidden","code":403}`)
	r.runTasks(t.Context(), r.newAgentMetricsTasks())
	if len(r.facts.LastReads) > 0 || !strings.Contains(fmt.Sprint(checkCallerRights(r.facts)), "you may not get pods/proxy") {
		t.Errorf("%+v, %v", r.facts.LastReads, r.facts.ReadErrors)
	}
}

func TestAgentMetricsPortIsFound(t *testing.T) {
	http := corev1.ContainerPort{Name: "http", ContainerPort: 17923}
	for name, c := range map[string]struct {
		port  string // value of the annotation
		ports []corev1.ContainerPort
		want  int32
	}{
		"none is told":                {"", nil, 9818},
		"by its name":                 {"1", []corev1.ContainerPort{http, {Name: "metrics", ContainerPort: 9999}}, 9999},
		"by the annotation":           {"9000", []corev1.ContainerPort{http}, 9000},
		"an annotation that is wrong": {"99999", []corev1.ContainerPort{http}, 17923},
		"the only one":                {"", []corev1.ContainerPort{http}, 17923},
		"one of several":              {"", []corev1.ContainerPort{http, {Name: "other", ContainerPort: 1}}, 9818},
	} {
		pod := newAgentPod("node-a", true)
		pod.Spec.Containers[0].Ports = c.ports
		if c.port != "" {
			pod.Annotations = map[string]string{scrapePortAnnotation: c.port}
		}
		if got := findMetricsPort(pod); got != c.want {
			t.Errorf("%s: port %d, want %d", name, got, c.want)
		}
	}
}

func FuzzExpositions(f *testing.F) {
	for _, seed := range []string{
		lastReadMetric + " 1.7e9", lastReadMetric + `{source="a"} 1`, lastReadMetric + " 0", lastReadMetric + " NaN", lastReadMetric + " -1", lastReadMetric + " 1e300", "",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if read, err := parseLastNoticeRead(raw); err == nil && !read.At.IsZero() && (read.At.Unix() < 0 || read.At.Year() > 9999+1) {
			t.Errorf("%q: %s", raw, read.At)
		}
	})
}
