// Package launch keeps the record of launches in the status of a NodeGroup, requests instances from clouds, and tracks
// them until their Nodes are usable. It is the only code that requests instances. A launch needs a Reservation, and
// only a write to the record returns one.
package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/cloud"
)

// Record reads and writes the launch records of NodeGroups. The launch record of a group of a file is in a ConfigMap,
// because the group has no object.
type Record struct {
	reader       client.Reader
	statusWriter client.StatusClient
	configMaps   configMapStore
}

// NewRecord returns a record that reads NodeGroups without a cache and writes their status.
func NewRecord(live client.Reader, status client.StatusClient) *Record {
	return &Record{reader: live, statusWriter: status, configMaps: configMapStore{reader: live, lastStatus: map[string]*v1alpha1.ProvisioningStatus{}}}
}

// Update reads the provisioning status of a group, lets change modify it, and writes it. If another process has written
// the status since the read, it does all of this again. It writes nothing if change returns an error, or if the group
// was deleted and created anew.
func (r *Record) Update(ctx context.Context, g *v1alpha1.NodeGroup, change func(*v1alpha1.ProvisioningStatus) error) error {
	if g.UID == "" {
		return r.configMaps.update(ctx, g.Name, change)
	}
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, status, err := r.readLive(ctx, g)
		if err != nil {
			return err
		}
		if err := change(status); err != nil {
			return err
		}
		return r.patchStatusIfUnchanged(ctx, now, status)
	})
}

// readLive reads a group without a cache.
func (r *Record) readLive(ctx context.Context, g *v1alpha1.NodeGroup) (live *v1alpha1.NodeGroup, status *v1alpha1.ProvisioningStatus, err error) {
	live = &v1alpha1.NodeGroup{}
	if err := r.reader.Get(ctx, client.ObjectKey{Name: g.Name}, live); err != nil {
		return nil, nil, fmt.Errorf("NodeGroup %s: %w", g.Name, err)
	}
	if live.UID != g.UID {
		return nil, nil, apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("nodegroups").GroupResource(), g.Name)
	}
	status = &v1alpha1.ProvisioningStatus{}
	if live.Status.Provisioning != nil {
		status = live.Status.Provisioning.DeepCopy()
	}
	return live, status, nil
}

// ReadUncached reads the provisioning status of a group without a cache.
func (r *Record) ReadUncached(ctx context.Context, g *v1alpha1.NodeGroup) (is *v1alpha1.ProvisioningStatus, err error) {
	if g.UID == "" {
		_, is, err = r.configMaps.readConfigMap(ctx, g.Name)
		return is, err
	}
	_, is, err = r.readLive(ctx, g)
	return is, err
}

// ReadCached returns the last known provisioning status of a group, or nil if there is none. It calls the API server
// only for a group of a file that this process has not read yet.
func (r *Record) ReadCached(ctx context.Context, g *v1alpha1.NodeGroup) (*v1alpha1.ProvisioningStatus, error) {
	if g.UID == "" {
		return r.configMaps.readCached(ctx, g.Name)
	}
	return g.Status.Provisioning, nil
}

// RemoveLaunch removes a launch after its owner has recorded the result.
func (r *Record) RemoveLaunch(ctx context.Context, g *v1alpha1.NodeGroup, id string) error {
	return r.Update(ctx, g, func(s *v1alpha1.ProvisioningStatus) error {
		s.Launches = slices.DeleteFunc(s.Launches, func(l v1alpha1.Launch) bool { return l.ID == id })
		return nil
	})
}

// patchStatusIfUnchanged writes the provisioning status of a group. It fails with a conflict if the group was written since it was
// read.
func (r *Record) patchStatusIfUnchanged(ctx context.Context, g *v1alpha1.NodeGroup, s *v1alpha1.ProvisioningStatus) error {
	if equality.Semantic.DeepEqual(g.Status.Provisioning, s) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": g.UID, "resourceVersion": g.ResourceVersion},
		"status": map[string]any{"provisioning": map[string]any{ // a merge patch keeps other fields
			"provisioning": s.Provisioning, "launches": s.Launches, "backOffs": s.BackOffs, "learned": s.Learned,
		}},
	})
	if err != nil {
		return err
	}
	target := &v1alpha1.NodeGroup{}
	target.Name = g.Name
	if err := r.statusWriter.Status().Patch(ctx, target, client.RawPatch(types.MergePatchType, patch)); err != nil {
		return fmt.Errorf("status of NodeGroup %s: %w", g.Name, err)
	}
	return nil
}

// NewLaunchID returns a random ID of 8 hexadecimal digits.
func NewLaunchID() string { return fmt.Sprintf("%08x", rand.Uint32()) }

// Reservation is the right to request one recorded launch.
type Reservation struct{ ID string }

// ReserveLaunches records launches before the cloud is asked, so that a crash cannot lose them (invariant I8). It
// returns a Reservation for each. The function write adds the launches to the status. It must return an error if the
// status has a launch that the decision did not consider. So if two processes decide at once, only one of them succeeds
// (invariant I5).
func (r *Record) ReserveLaunches(ctx context.Context, g *v1alpha1.NodeGroup, ids []string, addLaunches func(*v1alpha1.ProvisioningStatus) error) ([]Reservation, error) {
	err := r.Update(ctx, g, func(s *v1alpha1.ProvisioningStatus) error {
		if err := addLaunches(s); err != nil {
			return err
		}
		if len(s.Launches) > v1alpha1.MaxLaunches {
			return fmt.Errorf("NodeGroup %s: status.provisioning.launches: %d launches, want at most %d: wait until some are Ready", g.Name,
				len(s.Launches), v1alpha1.MaxLaunches)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]Reservation, len(ids))
	for i, id := range ids {
		out[i] = Reservation{id}
	}
	return out, nil
}

// Request requests the instances of a launch from the cloud. Call it once per reservation.
func (Reservation) Request(ctx context.Context, p cloud.Provider, group string, o cloud.LaunchRequest) (cloud.Operation, error) {
	return p.Grow(ctx, group, o)
}

// SizeLimit is how many more instances a limit allows: the group's own maximum, or its cloud's.
type SizeLimit struct {
	Left    int
	Message string
}

// SizeLimits returns how many more instances each limit permits in a group with size instances, including open launches
// (invariant I5). No other code compares a group's size with its maximum.
func SizeLimits(g *v1alpha1.NodeGroup, size, cloudMaximum int) (list []SizeLimit) {
	if most := g.Spec.MaxSize; most != nil {
		list = append(list, SizeLimit{int(*most) - size, fmt.Sprintf("the group %s has %d instances, including provisioning ones; its maximum is %d", g.Name, size, *most)})
	}
	if cloudMaximum > 0 {
		list = append(list, SizeLimit{cloudMaximum - size, fmt.Sprintf("the group %s has %d instances, including provisioning ones; its cloud's maximum is %d", g.Name, size, cloudMaximum)})
	}
	return list
}
