package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/slipway-dev/slipway/internal/placement/live"
	"github.com/slipway-dev/slipway/internal/placement/saved"
)

// clusterFlags say which cluster is asked about: a live one or a saved one.
type clusterFlags struct {
	kube kubeFlags
	file string
}

func (c *clusterFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&c.file, "snapshot", "", "ask about the cluster saved in this file instead of a live one")
	c.kube.add(fs)
}

func (c *clusterFlags) read(ctx context.Context) (*saved.Objects, error) {
	if c.file == "" {
		return readLive(ctx, c.kube)
	}
	f, err := os.Open(c.file)
	if err != nil {
		return nil, fmt.Errorf("--snapshot: %w", err)
	}
	defer func() { _ = f.Close() }() // It was only read.
	o, err := saved.Read(f)
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
