package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// VolumeAPI is what waiting for volumes asks of the API server. *kubeapi.Client is one.
type VolumeAPI interface {
	GetClaim(ctx context.Context, namespace, name string) (*kubeapi.PersistentVolumeClaim, error)
	ListVolumeAttachments(ctx context.Context) ([]kubeapi.VolumeAttachment, error)
}

// detachEvery is the pause between two looks: VolumeAttachments have no selector by node to watch with.
const detachEvery = 2 * time.Second

// VolumeReceipt says which volumes of the drained pods were waited for.
type VolumeReceipt struct {
	Detached []string `json:"detached,omitempty"`
	Attached []string `json:"stillAttached,omitempty"`
	Problem  string   `json:"problem,omitempty"`
}

// awaitDetach waits until no volume of the drained pods is attached to the node, or the terms are over. A volume that
// stays attached costs its next pod up to six minutes, after which the attach/detach controller forces it off.
func awaitDetach(ctx context.Context, api VolumeAPI, node string, pods []kubeapi.Pod, t Terms) VolumeReceipt {
	ctx, cancel := boundedBy(ctx, t)
	defer cancel()
	volumes, err := volumesOf(ctx, api, pods)
	if err != nil {
		return VolumeReceipt{Problem: err.Error()}
	}
	var r VolumeReceipt
	for len(volumes) > 0 {
		attached, err := attachedTo(ctx, api, node, volumes)
		if err != nil {
			r.Problem = err.Error()
		} else if r = split(volumes, attached); len(attached) == 0 {
			return r
		}
		if !sleep(ctx, detachEvery) {
			break
		}
	}
	return r
}

func boundedBy(ctx context.Context, t Terms) (context.Context, context.CancelFunc) {
	for _, end := range []time.Time{t.Deadline, t.GiveUp} {
		if !end.IsZero() {
			return context.WithDeadline(ctx, end)
		}
	}
	return context.WithCancel(ctx)
}

// volumesOf finds the PersistentVolumes behind the pods' claims. A claim that is gone has no volume to wait for.
func volumesOf(ctx context.Context, api VolumeAPI, pods []kubeapi.Pod) ([]string, error) {
	var names []string
	for i := range pods {
		for _, claim := range claimsOf(&pods[i]) {
			c, err := api.GetClaim(ctx, pods[i].Namespace, claim)
			if kubeapi.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("claim %s/%s: %w", pods[i].Namespace, claim, err)
			}
			if c.Spec.VolumeName != "" {
				names = append(names, c.Spec.VolumeName)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func claimsOf(p *kubeapi.Pod) []string {
	var names []string
	for _, v := range p.Spec.Volumes {
		switch {
		case v.PersistentVolumeClaim != nil:
			names = append(names, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			names = append(names, p.Name+"-"+v.Name)
		}
	}
	return names
}

func attachedTo(ctx context.Context, api VolumeAPI, node string, volumes []string) ([]string, error) {
	all, err := api.ListVolumeAttachments(ctx)
	if err != nil {
		return nil, err
	}
	var attached []string
	for _, a := range all {
		name := a.Spec.Source.PersistentVolumeName
		if a.Spec.NodeName == node && name != nil && slices.Contains(volumes, *name) {
			attached = append(attached, *name)
		}
	}
	slices.Sort(attached)
	return slices.Compact(attached), nil
}

func split(volumes, attached []string) VolumeReceipt {
	r := VolumeReceipt{Attached: attached}
	for _, v := range volumes {
		if !slices.Contains(attached, v) {
			r.Detached = append(r.Detached, v)
		}
	}
	return r
}

// sleep waits for d and reports whether ctx still lives.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
