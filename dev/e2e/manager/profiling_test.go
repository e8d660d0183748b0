package manager_test

import (
	"net/http"
	"testing"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
)

// TestProfilesAreServedOnlyToLoopbackRequests checks each shipped command. A request that a proxy forwarded does not
// count as a loopback request.
func TestProfilesAreServedOnlyToLoopbackRequests(t *testing.T) {
	t.Parallel()
	b := ready(t)
	pool := controlplane.AKSPool{Name: "profiled"}
	b.check(b.AddPool(b.ctx, pool, 1))
	agent, err := b.StartAgent(b.ctx, pool, 0, "--profiling")
	b.check(err)
	t.Cleanup(func() { _ = agent.KillIfAlive() })
	manager := b.start("profiled", "--kubeconfig", b.credentials(), "--selector", shard+"=profiled", "--leader-elect=false", "--profiling")
	for name, address := range map[string]string{
		"slipway-agent": agent.MetricsAddress(), "slipway manager": manager.address, "slipway cloudpool": b.startCloudpool("--profiling"),
	} {
		url := "http://" + address + "/debug/pprof/cmdline"
		b.check(testbed.PollUntil(b.ctx, name+" serves profiles", func() bool { return b.requestStatus(url, nil) == http.StatusOK }))
		for _, header := range []string{"X-Forwarded-For", "Forwarded", "Via"} {
			if got := b.requestStatus(url, http.Header{header: {"10.0.0.9"}}); got != http.StatusForbidden {
				t.Errorf("%s answers %d with the header %s, want 403", name, got, header)
			}
		}
	}
}

// startCloudpool starts a cloudpool in front of a server that does not exist, and returns the address of its metrics.
func (b bed) startCloudpool(args ...string) string {
	b.t.Helper()
	path, err := testbed.EnsureBinary("slipway")
	b.check(err)
	front, err := controlplane.ReserveFreeAddress(b.ctx)
	b.check(err)
	metrics, err := controlplane.ReserveFreeAddress(b.ctx)
	b.check(err)
	clouds := testbed.WriteTempFile(b.t, "cloudpool.yaml", "cloudpool: {pools: [{name: builders, url: 'http://127.0.0.1:1'}]}")
	b.StartProcessForTest(b.ctx, b.t, controlplane.Command{
		Name: "profiled-cloudpool", Path: path, Args: append([]string{
			"cloudpool", "--kubeconfig", b.Kubeconfig(), "--cloud-config", clouds, "--listen", front, "--metrics-listen", metrics, "--namespace", namespace,
		}, args...),
	})
	return metrics
}

// requestStatus returns the status of an answer. Status 0 means no answer.
func (b bed) requestStatus(url string, header http.Header) int {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.ctx, http.MethodGet, url, nil)
	b.check(err)
	for name, values := range header {
		r.Header[name] = values
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	_ = answer.Body.Close() // only the status matters
	return answer.StatusCode
}
