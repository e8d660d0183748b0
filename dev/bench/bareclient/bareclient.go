// Package bareclient drains a node with the fewest requests. Its time is the floor that the benchmarks compare a
// drain with: what the control plane itself needs.
package bareclient

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/cordon"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// userAgent has the prefix of the agents, for the audit log.
	userAgent = "slipway-agent/floor"
	// pause is the wait after a refusal without Retry-After.
	pause = time.Second
)

// ClaimAnnotation is the annotation that CordonAndEvict sets on the node.
var ClaimAnnotation = cordon.AnnotationKey("floor")

// Client sends the minimum of requests that a drain needs: one patch of the node, and one eviction for each pod. It
// knows the node and the pods in advance, and waits for nothing else.
type Client struct {
	Pods []kubeapi.Pod

	api  *kubeapi.Client
	node string
}

// Connect opens a connection and lists the pods on the node.
func Connect(ctx context.Context, kubeconfig, node string) (*Client, error) {
	config, err := kubeapi.LoadConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	api, err := config.NewClient(userAgent)
	if err != nil {
		return nil, err
	}
	pods, err := api.ListPodsOnNode(ctx, node)
	return &Client{pods, api, node}, err
}

// CordonAndEvict cordons the node, and then evicts all its pods concurrently. It returns when every eviction is
// accepted.
func (c *Client) CordonAndEvict(ctx context.Context) error {
	return c.cordonAndEvictQueues(ctx, func(p kubeapi.Pod) string { return p.UID })
}

// CordonAndEvictInQueues does the same, but evicts pods with the same value of a label one after another. With one
// PDB for each value this can be faster: the API server sleeps half a second when two evictions write the status of
// one PDB.
func (c *Client) CordonAndEvictInQueues(ctx context.Context, label string) error {
	return c.cordonAndEvictQueues(ctx, func(p kubeapi.Pod) string { return p.Namespace + "/" + p.Labels[label] })
}

func (c *Client) cordonAndEvictQueues(ctx context.Context, queueOf func(kubeapi.Pod) string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{ClaimAnnotation: "{}"}},
		"spec":     map[string]any{"unschedulable": true},
	})
	if err != nil {
		return err
	}
	err = retryRefused(ctx, func() error {
		_, err := c.api.PatchNode(ctx, c.node, patch)
		return err
	})
	if err != nil {
		return err
	}
	queues := map[string][]kubeapi.PodRemoval{}
	for _, p := range c.Pods {
		key := queueOf(p)
		queues[key] = append(queues[key], kubeapi.PodRemoval{Namespace: p.Namespace, Name: p.Name, UID: p.UID})
	}
	var group errgroup.Group
	for _, queue := range queues {
		group.Go(func() error {
			for _, r := range queue {
				if err := retryRefused(ctx, func() error { return c.api.EvictPod(ctx, r) }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// retryRefused calls send until it succeeds, or until the object does not exist. After each error it waits for the
// Retry-After of the response, or for pause. It returns an error if ctx ends first.
func retryRefused(ctx context.Context, send func() error) error {
	for {
		err := send()
		if err == nil || kubeapi.IsNotFound(err) {
			return nil
		}
		after := pause
		if s := kubeapi.ToStatusError(err); s != nil && s.Code == http.StatusTooManyRequests && s.RetryAfter > 0 {
			after = s.RetryAfter
		}
		if err := testbed.Sleep(ctx, after); err != nil {
			return err
		}
	}
}
