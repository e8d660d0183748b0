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
	return CordonAndEvictAll(ctx, []*Client{c}, func(p kubeapi.Pod) string { return p.UID })
}

// CordonAndEvictInQueues does the same, but evicts pods with the same value of a label one after another. With one
// PDB for each value this can be faster: the API server sleeps half a second when two evictions write the status of
// one PDB.
func (c *Client) CordonAndEvictInQueues(ctx context.Context, label string) error {
	return CordonAndEvictAll(ctx, []*Client{c}, func(p kubeapi.Pod) string { return p.Namespace + "/" + p.Labels[label] })
}

// CordonAndEvictAll cordons the nodes of all clients concurrently, and then evicts their pods. It evicts pods of the
// same queue one after another, even if they are on several nodes. It returns when every eviction is accepted.
func CordonAndEvictAll(ctx context.Context, clients []*Client, queueOf func(kubeapi.Pod) string) error {
	var cordons errgroup.Group
	for _, c := range clients {
		cordons.Go(func() error { return c.cordon(ctx) })
	}
	if err := cordons.Wait(); err != nil {
		return err
	}
	queues := map[string][]func() error{}
	for _, c := range clients {
		for _, p := range c.Pods {
			removal := kubeapi.PodRemoval{Namespace: p.Namespace, Name: p.Name, UID: p.UID}
			queues[queueOf(p)] = append(queues[queueOf(p)], func() error { return c.api.EvictPod(ctx, removal) })
		}
	}
	var group errgroup.Group
	for _, queue := range queues {
		group.Go(func() error {
			for _, evict := range queue {
				if err := retryRefused(ctx, evict); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// cordon cordons the node, and sets ClaimAnnotation.
func (c *Client) cordon(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{ClaimAnnotation: "{}"}},
		"spec":     map[string]any{"unschedulable": true},
	})
	if err != nil {
		return err
	}
	return retryRefused(ctx, func() error {
		_, err := c.api.PatchNode(ctx, c.node, patch)
		return err
	})
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
