package demo

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
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/dev/workload"
	"github.com/slipway-dev/slipway/internal/compat/kubeaware"
)

const (
	workers        = "workers"
	workerMachines = 3
	frontends      = 6
)

// runCloudpoolScaling is the step with an autoscaler that requests a size from a cloudpool and knows nothing of pods. slipway replaces
// the old proxy in front of the pool's server, under the same name with the same file.
func (s *stage) runCloudpoolScaling(ctx context.Context, a *stepOutput) (_ string, err error) {
	a.startTime = time.Now()
	pool := emulator.New(emulator.Options{
		Name: workers, TerminateTime: time.Second, Nodes: emulator.ClusterNodes{Cluster: s.Cluster, Pool: workers},
	})
	defer pool.Close()
	server := httptest.NewServer(pool.Handler())
	defer server.Close()
	if _, err := pool.AddMachines(ctx, workerMachines); err != nil {
		return "", err
	}
	frontend := workload.App{
		Namespace: workers, Name: "frontend", Replicas: frontends, MaxUnavailable: "2", StopSeconds: "0.5",
		NodeSelector: map[string]string{emulator.PoolLabel: workers},
	}
	if err := workload.CreateAndAwait(ctx, s.Client(), workload.NewNamespace(workers), frontend.Deployment(), frontend.PodDisruptionBudget()); err != nil {
		return "", err
	}
	front, process, err := s.startCloudpoolProxy(ctx, server.URL)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, process.Kill()) }()
	a.print(time.Now(), "a cloudpool has %d machines with %d pods. The PDB allows 2 unavailable pods. slipway %s runs in front of the pool in one process, with "+
		"the old tool's config.json", workerMachines, frontends, kubeaware.Tool)
	if err := s.requestAndCheckSizes(ctx, a, front, pool); err != nil {
		return "", err
	}
	return fmt.Sprintf("the pool was scaled from %d to 2 machines, the backend agrees, and none of %d pods was lost", workerMachines, frontends), nil
}

// startCloudpoolProxy starts the proxy with a configuration file in the old format.
func (s *stage) startCloudpoolProxy(ctx context.Context, backend string) (front string, _ *controlplane.Process, err error) {
	path, err := testbed.EnsureBinary("slipway")
	if err != nil {
		return "", nil, err
	}
	config, err := json.Marshal(map[string]any{
		"apiServer": map[string]any{"url": s.RESTConfig().Host, "auth": map[string]any{"kubeConfigPath": s.Kubeconfig()}},
		"backend":   map[string]any{"cloudPoolUrl": backend, "timeout": "30s"},
	})
	if err != nil {
		return "", nil, err
	}
	file := filepath.Join(s.Dir(), "cloudpool-config.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		return "", nil, err
	}
	address, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	health, err := controlplane.ReserveFreeAddress(ctx)
	if err != nil {
		return "", nil, err
	}
	host, port, _ := strings.Cut(address, ":")
	process, err := s.StartProcess(ctx, controlplane.Command{
		Name: kubeaware.Tool, Path: path, ReadyURL: "http://" + health + "/readyz",
		Args: []string{
			kubeaware.Tool, "--config-file=" + file, "--port", port, "--address", host, "--namespace", testbed.AgentNamespace,
			"--metrics-listen", health,
		},
	})
	return "http://" + address, process, err
}

// requestAndCheckSizes requests sizes, and checks the machines and pods.
func (s *stage) requestAndCheckSizes(ctx context.Context, a *stepOutput, front string, pool *emulator.Pool) error {
	for _, ask := range []struct {
		body string
		code int
		say  string
	}{
		{`{}`, http.StatusBadRequest, "the backend alone would have scaled to 0"},
		{`{"desiredSize":2}`, http.StatusOK, "the machine with pods that fit elsewhere was drained and deleted"},
		{`{"desiredSize":2}`, http.StatusOK, "nothing to do"},
	} {
		code, answer, err := postJSON(ctx, front+"/pool/size", ask.body)
		if err != nil {
			return err
		}
		if err := checkExpectation(code == ask.code, fmt.Sprintf("%d for %s", ask.code, ask.body), "%d %s", code, answer); err != nil {
			return err
		}
		a.print(time.Now(), "curl -d '%s' …/pool/size: %d %s– %s", ask.body, code, answer, ask.say)
	}
	nodes, err := s.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: emulator.PoolLabel + "=" + workers})
	if err != nil {
		return err
	}
	app, err := s.Client().AppsV1().Deployments(workers).Get(ctx, "frontend", metav1.GetOptions{})
	if err != nil {
		return err
	}
	return firstError(
		checkExpectation(len(pool.Machines()) == 2 && pool.DesiredSize() == 2, "2 machines, and a desired size of 2", "%d and %d", len(pool.Machines()), pool.DesiredSize()),
		checkExpectation(len(nodes.Items) == 2, "2 nodes", "%d", len(nodes.Items)),
		checkExpectation(app.Status.ReadyReplicas >= frontends-2, "no more than 2 pods missing", "%d of %d ready", app.Status.ReadyReplicas, frontends),
	)
}

// postJSON sends a body as curl -d does, and returns the response's status and message.
func postJSON(ctx context.Context, url, body string) (code int, message string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }() // after reading to the end
	raw, err := io.ReadAll(response.Body)
	var reply struct{ Message string }
	if json.Unmarshal(raw, &reply) == nil && reply.Message != "" {
		message = "“" + reply.Message + "” "
	}
	return response.StatusCode, message, err
}
