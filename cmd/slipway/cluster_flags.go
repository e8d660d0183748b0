package main

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/saved"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// gcPercent is the value of GOGC for commands that read a whole cluster. The heap can grow fivefold between two garbage
// collections.
const gcPercent = 400

// clusterFlags holds the flags that select a live cluster or a snapshot file.
type clusterFlags struct {
	kube kubeFlags
	file string
}

func (c *clusterFlags) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&c.file, "snapshot", "", "read the cluster from this file instead of a live cluster")
	c.kube.addFlags(fs)
}

// readCluster reads the objects of the live cluster or of the snapshot file. Most memory stays in use until the command
// ends. So it makes garbage collections rare, unless GOGC is set.
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
	if err == nil {
		err = markNodesBeingRemoved(ctx, kube, o)
	}
	if apierrors.IsForbidden(err) {
		return nil, &hintError{err, "the ClusterRole slipway-viewer in deploy/viewer contains the missing permissions: " +
			"bind it to your user, or use a file that another user saved with slipway snapshot save"}
	}
	return o, err
}

// markNodesBeingRemoved marks the nodes that are already being taken out of service, so that no plan offers them or moves
// pods to them.
func markNodesBeingRemoved(ctx context.Context, kube kubeFlags, o *saved.Objects) error {
	c, err := kube.newObjectClient()
	if err != nil {
		return err
	}
	var retirements v1alpha1.NodeRetirementList
	if err := c.List(ctx, &retirements); err != nil && !isTypeMissing(err) {
		return err
	}
	for i, n := range o.Nodes {
		o.Nodes[i] = retirement.MarkIfBeingRemoved(n, retirements.Items)
	}
	return nil
}

// defaultNamespace returns the namespace for pod names without a namespace. A snapshot file has no context, so for a
// file it returns the value of --namespace or "default".
func (c *clusterFlags) defaultNamespace() (string, error) {
	if c.file == "" {
		return c.kube.contextNamespace()
	}
	if named := *c.kube.flags.Namespace; named != "" {
		return named, nil
	}
	return metav1.NamespaceDefault, nil
}
