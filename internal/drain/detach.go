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

// detach waits for the volumes of the drained pods, if the caller wants that, and adds what came of it to the receipt.
func (d *Drain) detach(ctx context.Context, r *Receipt) {
	if d.o.Volumes != nil {
		r.Volumes = d.awaitDetach(ctx)
		r.Ended = time.Now()
	}
}

// awaitDetach waits until no volume of the drained pods is attached to the node, or the terms are over. A volume that
// stays attached costs its next pod up to six minutes, after which the attach/detach controller forces it off. A
// volume that a pod which stays uses too is not waited for.
func (d *Drain) awaitDetach(ctx context.Context) VolumeReceipt {
	var drained, staying []kubeapi.Pod
	for _, p := range d.pods {
		switch {
		case p.action != Leave:
			drained = append(drained, p.pod)
		case !p.gone:
			staying = append(staying, p.pod)
		}
	}
	claims := claimsOf(drained, claimsOf(staying, nil))
	var r VolumeReceipt
	var volumes []string
	known := false // a claim may go while its volume is still attached: the claims are read once
	for {
		var err error
		if !known {
			volumes, err = volumesOf(ctx, d.o.Volumes, claims)
			known = err == nil
		}
		if known {
			r, err = look(ctx, d.o.Volumes, d.o.Node, volumes, r)
		}
		if err == nil && len(r.Attached) == 0 {
			return r
		}
		if err != nil {
			r.Problem = err.Error()
		}
		d.takeTerms(time.Now())
		if kubeapi.IsForbidden(err) || !d.pauseWithin(ctx, detachEvery) {
			return r
		}
	}
}

// pauseWithin sleeps and reports whether the terms leave time to go on.
func (d *Drain) pauseWithin(ctx context.Context, pause time.Duration) bool {
	now := time.Now()
	end := sooner(d.terms.Deadline, d.terms.GiveUp)
	if !end.IsZero() {
		pause = min(pause, end.Sub(now))
	}
	return pause > 0 && sleep(ctx, pause)
}

// look finds out which volumes are attached to the node; when it cannot, what was known before stands.
func look(ctx context.Context, api VolumeAPI, node string, volumes []string, before VolumeReceipt) (VolumeReceipt, error) {
	if len(volumes) == 0 {
		return VolumeReceipt{}, nil
	}
	attached, err := attachedTo(ctx, api, node, volumes)
	if err != nil {
		return before, err
	}
	return split(volumes, attached), nil
}

// claim names one PersistentVolumeClaim.
type claim struct{ namespace, name string }

// volumesOf finds the PersistentVolumes behind the claims. A claim that is gone has no volume to wait for.
func volumesOf(ctx context.Context, api VolumeAPI, claims []claim) ([]string, error) {
	var names []string
	for _, c := range claims {
		found, err := api.GetClaim(ctx, c.namespace, c.name)
		if kubeapi.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("claim %s/%s: %w", c.namespace, c.name, err)
		}
		if found.Spec.VolumeName != "" {
			names = append(names, found.Spec.VolumeName)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// claimsOf lists the claims that the pods use, except some.
func claimsOf(pods []kubeapi.Pod, except []claim) []claim {
	var all []claim
	for i := range pods {
		p := &pods[i]
		for _, v := range p.Spec.Volumes {
			c := claim{namespace: p.Namespace}
			switch {
			case v.PersistentVolumeClaim != nil:
				c.name = v.PersistentVolumeClaim.ClaimName
			case v.Ephemeral != nil:
				c.name = p.Name + "-" + v.Name
			default:
				continue
			}
			if !slices.Contains(except, c) && !slices.Contains(all, c) {
				all = append(all, c)
			}
		}
	}
	return all
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
