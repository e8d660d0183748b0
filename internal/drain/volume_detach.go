package drain

import (
	"context"
	"fmt"
	"slices"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// VolumeAPI lists the requests that the drain sends while it waits for volumes. *kubeapi.Client implements it.
type VolumeAPI interface {
	GetPersistentVolumeClaim(ctx context.Context, namespace, name string) (*kubeapi.PersistentVolumeClaim, error)
	ListVolumeAttachments(ctx context.Context) ([]kubeapi.VolumeAttachment, error)
}

// detachPollInterval is the pause between two reads of the VolumeAttachments. They cannot be watched for one node,
// because the API has no field selector for the node.
const detachPollInterval = 2 * time.Second

// VolumeReport lists the volumes of the drained pods that the drain waited for.
type VolumeReport struct {
	Detached []string `json:"detached,omitempty"`
	Attached []string `json:"stillAttached,omitempty"`
	Problem  string   `json:"problem,omitempty"`
}

// detachWait is the state of the wait for the drained pods' volumes. The wait begins when the last pod is gone.
type detachWait struct {
	volumes      []string
	volumesKnown bool // a claim may be deleted while its volume is attached: claims are read once
	pollInFlight bool
	done         bool
	nextPollAt   time.Time
	report       VolumeReport
}

// startVolumePollIfDue starts to read which volumes of the drained pods are attached to the node. It returns when to
// read again. If a volume stays attached, the next pod that uses it waits up to 6 minutes, until the attach/detach
// controller forces the detachment. If another pod has to be removed, the wait starts again.
func (d *Drain) startVolumePollIfDue(ctx context.Context, now time.Time) (nextPollAt time.Time) {
	v := d.detachWait
	switch {
	case d.options.Volumes == nil:
		return time.Time{}
	case !d.isEmpty():
		d.detachWait = &detachWait{}
		return time.Time{}
	case !d.finalList.done || v.pollInFlight || v.done:
		return time.Time{}
	case now.Before(v.nextPollAt):
		return v.nextPollAt
	}
	v.pollInFlight = true
	was, claims, o := *v, d.listClaimsOfDrainedPods(), d.options // the engine may change its options
	d.background.Go(func() {
		is, err := was.pollAttachments(ctx, o, claims)
		d.inbox.putAndWake(func(now time.Time) {
			is.done = err == nil && len(is.report.Attached) == 0 || kubeapi.IsForbidden(err)
			is.pollInFlight, is.nextPollAt = false, now.Add(detachPollInterval)
			if is.done && len(claims) > 0 { // that took a while, in which the watch may have missed a pod
				d.finalList.done, d.finalList.nextAt = false, time.Time{}
			}
			*v = is
		})
	})
	return time.Time{}
}

// pollAttachments reads the attached volumes from the API server, and returns v with the result.
func (v detachWait) pollAttachments(ctx context.Context, o Options, claims []claim) (detachWait, error) {
	var err error
	if !v.volumesKnown {
		v.volumes, err = fetchVolumeNames(ctx, o.Volumes, claims)
		v.volumesKnown = err == nil
	}
	if v.volumesKnown {
		v.report, err = readVolumeReport(ctx, o.Volumes, o.Node, v.volumes, v.report)
	}
	if err != nil {
		v.report.Problem = err.Error()
	}
	return v, err
}

// isDetachWaitOver reports whether the drain may end although volumes may still be attached.
func (d *Drain) isDetachWaitOver(now time.Time) bool {
	end := earlierNonZero(d.terms.Deadline, d.terms.TimeoutAt)
	return d.options.Volumes == nil || d.detachWait.done || !end.IsZero() && !now.Before(end)
}

// listClaimsOfDrainedPods returns the PersistentVolumeClaims of the drained pods. It leaves out claims that a pod which
// stays on the node uses too.
func (d *Drain) listClaimsOfDrainedPods() []claim {
	var drained, staying []kubeapi.Pod
	for _, p := range d.pods {
		switch {
		case p.action != podrules.Skip:
			drained = append(drained, p.pod)
		case !p.gone:
			staying = append(staying, p.pod)
		}
	}
	return listClaims(drained, listClaims(staying, nil))
}

// readVolumeReport reads which of the volumes are attached to the node. After an error it returns the report before and
// the error.
func readVolumeReport(ctx context.Context, api VolumeAPI, node string, volumes []string, before VolumeReport) (VolumeReport, error) {
	if len(volumes) == 0 {
		return VolumeReport{}, nil
	}
	attached, err := listAttachedVolumes(ctx, api, node, volumes)
	if err != nil {
		return before, err
	}
	return newVolumeReport(volumes, attached), nil
}

type claim struct{ namespace, name string }

// fetchVolumeNames returns the names of the PersistentVolumes of the claims. It leaves out a claim that was deleted,
// because its volume is unknown.
func fetchVolumeNames(ctx context.Context, api VolumeAPI, claims []claim) ([]string, error) {
	var names []string
	for _, c := range claims {
		found, err := api.GetPersistentVolumeClaim(ctx, c.namespace, c.name)
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

// listClaims returns the claims that the pods use, without the claims in except.
func listClaims(pods []kubeapi.Pod, except []claim) []claim {
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

func listAttachedVolumes(ctx context.Context, api VolumeAPI, node string, volumes []string) ([]string, error) {
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

func newVolumeReport(volumes, attached []string) VolumeReport {
	r := VolumeReport{Attached: attached}
	for _, v := range volumes {
		if !slices.Contains(attached, v) {
			r.Detached = append(r.Detached, v)
		}
	}
	return r
}
