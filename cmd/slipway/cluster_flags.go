package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// gcPercent lets the heap grow fivefold between two garbage collections.
const gcPercent = 400

// clusterFlags select the cluster: a live one or a saved one.
type clusterFlags struct {
	kube kubeFlags
	file string
}

func (c *clusterFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.file, "snapshot", "", "read the cluster from this file instead of a live cluster")
	c.kube.addFlags(fs)
}

// readCluster reads the cluster. Nearly all allocated memory is used until the command ends, so frequent garbage collection
// would only cost time. GOGC overrides this.
func (c *clusterFlags) readCluster(ctx context.Context) (*saved.Objects, error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if c.file == "" {
		return readLiveCluster(ctx, c.kube)
	}
	raw, err := os.ReadFile(c.file)
	if err != nil {
		return nil, fmt.Errorf("--snapshot: %w", err)
	}
	o, err := saved.Decode(raw)
	if err != nil {
		return nil, fmt.Errorf("--snapshot: %s: %w (want a file of slipway snapshot save)", c.file, err)
	}
	if len(o.Nodes) == 0 && len(o.Pods) == 0 {
		return nil, fmt.Errorf("--snapshot: %s contains no nodes and no pods: want a file of slipway snapshot save", c.file)
	}
	return o, nil
}

func readLiveCluster(ctx context.Context, kube kubeFlags) (*saved.Objects, error) {
	client, err := kube.newClientset()
	if err != nil {
		return nil, err
	}
	o, err := live.ReadClusterObjects(ctx, client)
	if apierrors.IsForbidden(err) {
		return nil, &hintError{err, "the ClusterRole slipway-viewer in deploy/viewer contains the missing permissions: " +
			"bind it to your user, or use a file that another user saved with slipway snapshot save"}
	}
	return o, err
}

// defaultNamespace returns the namespace of pod names without one. A saved cluster has no context, so it uses --namespace or
// "default".
func (c *clusterFlags) defaultNamespace() (string, error) {
	if c.file == "" {
		return c.kube.contextNamespace()
	}
	if named := *c.kube.flags.Namespace; named != "" {
		return named, nil
	}
	return metav1.NamespaceDefault, nil
}
