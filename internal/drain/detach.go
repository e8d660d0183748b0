package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
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

// detachment is the wait for the volumes of the drained pods, once nothing is left on the node.
type detachment struct {
	volumes []string
	known   bool // volumes are: a claim may go while its volume is still attached, so that claims are read once
	asking  bool
	done    bool
	next    time.Time
	report  VolumeReceipt
}

// awaitDetach asks which volumes of the drained pods are attached to the node, and returns when to ask again. A volume
// that stays attached costs its next pod up to six minutes, after which the attach/detach controller forces it off. The
// wait begins again when another pod has to leave.
func (d *Drain) awaitDetach(ctx context.Context, now time.Time) time.Time {
	v := d.detachment
	switch {
	case d.o.Volumes == nil:
		return time.Time{}
	case !d.empty():
		d.detachment = &detachment{}
		return time.Time{}
	case !d.recount.done || v.asking || v.done:
		return time.Time{}
	case now.Before(v.next):
		return v.next
	}
	v.asking = true
	was, claims := *v, d.claimsOfDrained()
	d.background.Go(func() {
		is, err := was.ask(ctx, d.o, claims)
		d.inbox.put(func(now time.Time) {
			is.done = err == nil && len(is.report.Attached) == 0 || kubeapi.IsForbidden(err)
			is.asking, is.next = false, now.Add(detachEvery)
			if is.done && len(claims) > 0 { // that took a while, in which the watch may have missed a pod
				d.recount.done, d.recount.next = false, time.Time{}
			}
			*v = is
		})
	})
	return time.Time{}
}

// ask returns the wait with what the API server says now.
func (v detachment) ask(ctx context.Context, o Options, claims []claim) (detachment, error) {
	var err error
	if !v.known {
		v.volumes, err = volumesOf(ctx, o.Volumes, claims)
		v.known = err == nil
	}
	if v.known {
		v.report, err = look(ctx, o.Volumes, o.Node, v.volumes, v.report)
	}
	if err != nil {
		v.report.Problem = err.Error()
	}
	return v, err
}

// detached reports that no volume is waited for any longer.
func (d *Drain) detached(now time.Time) bool {
	end := sooner(d.terms.Deadline, d.terms.GiveUp)
	return d.o.Volumes == nil || d.detachment.done || !end.IsZero() && !now.Before(end)
}

// claimsOfDrained returns the claims of the drained pods. A volume that a pod which stays uses too is not waited for.
func (d *Drain) claimsOfDrained() []claim {
	var drained, staying []kubeapi.Pod
	for _, p := range d.pods {
		switch {
		case p.action != podrules.Leave:
			drained = append(drained, p.pod)
		case !p.gone:
			staying = append(staying, p.pod)
		}
	}
	return claimsOf(drained, claimsOf(staying, nil))
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
