package testbed

import (
	"context"
	"log/slog"
	"net/url"

	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/dev/azure"
	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/fakecluster"
	"github.com/slipway-dev/slipway/dev/faultproxy"
)

// NewVirtual returns a testbed in memory that runs in virtual time (testing/synctest). It uses no network and no
// processes. It writes its files to dir. It has no CRDs, permissions or admission policies. Call Stop to end it.
func NewVirtual(dir string, o Options) (*Testbed, error) {
	memory, err := fakecluster.New()
	if err != nil {
		return nil, err
	}
	config := &rest.Config{Host: "https://kubernetes.test", QPS: -1, UserAgent: "slipway-dev", Transport: faultproxy.NewDirectTransport(memory)}
	cluster, err := controlplane.NewExternalCluster(config, dir)
	if err != nil {
		return nil, err
	}
	t := newTestbed(cluster, o)
	work, stop := context.WithCancel(context.Background())
	t.stop = func() {
		stop()
		memory.Close()
	}
	if t.Nodes, err = azure.WatchNodes(work, cluster.Client(), slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	if t.Pods, err = azure.WatchPods(work, cluster.Client(), t.Nodes); err != nil {
		return nil, err
	}
	o.Azure.Machines, o.Azure.LedgerBuilder = t.Nodes.NewMachines(nodePower{t}), t.Pods
	t.Azure = azure.New(o.Azure)
	t.base = &url.URL{Scheme: "http", Host: "azure.test"}
	t.newARM(o.ARM)
	t.armServer = &azure.ARMServer{URL: &url.URL{Scheme: "https", Host: "arm.test"}}
	return t, t.writeARMToken()
}
