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

// gcPercent lets the heap grow fivefold between two collections.
const gcPercent = 400

// clusterFlags say which cluster is asked about: a live one or a saved one.
type clusterFlags struct {
	kube kubeFlags
	file string
}

func (c *clusterFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&c.file, "snapshot", "", "ask about the cluster saved in this file instead of a live one")
	c.kube.add(fs)
}

// read reads the cluster. Nearly all that is allocated meanwhile lives until the command ends, so that collecting garbage
// as often as usual would cost time and give nothing back; GOGC still decides where it is set.
func (c *clusterFlags) read(ctx context.Context) (*saved.Objects, error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if c.file == "" {
		return readLive(ctx, c.kube)
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
		return nil, fmt.Errorf("--snapshot: %s holds no nodes and no pods: want a file of slipway snapshot save", c.file)
	}
	return o, nil
}

func readLive(ctx context.Context, kube kubeFlags) (*saved.Objects, error) {
	client, err := kube.clientset()
	if err != nil {
		return nil, err
	}
	o, err := live.List(ctx, client)
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("%w\nthese rights are those of the ClusterRole slipway-viewer in deploy/viewer: "+
			"bind it to yourself, or have somebody who may save the cluster with slipway snapshot save", err)
	}
	return o, err
}

// namespace is the one that a pod's bare name is looked for in. A saved cluster has no context to name one.
func (c *clusterFlags) namespace() (string, error) {
	if c.file == "" {
		return c.kube.namespace()
	}
	if named := *c.kube.flags.Namespace; named != "" {
		return named, nil
	}
	return metav1.NamespaceDefault, nil
}
