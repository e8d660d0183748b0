package surge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/internal/elapsed"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

const (
	// controllerManager is the field manager of the Deployment controller and of HorizontalPodAutoscalers.
	controllerManager = "kube-controller-manager"
	// defaultMaxReplicaCount is the maximum of a ScaledObject that names none.
	defaultMaxReplicaCount = 100
	// retryPause is the pause after a request without a clear answer.
	retryPause = 500 * time.Millisecond
	// conflictPause is the pause after a conflict. The status of a workload changes often.
	conflictPause = 50 * time.Millisecond
)

// sizeTarget is a field below spec that sets the size, and its object.
type sizeTarget struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Field      string `json:"field"`
}

func (t sizeTarget) ref() kubeapi.ObjectRef {
	return kubeapi.ObjectRef{APIVersion: t.APIVersion, Kind: t.Kind, Namespace: t.Namespace, Name: t.Name}
}

func (t sizeTarget) String() string {
	return fmt.Sprintf("%s %s/%s spec.%s", t.Kind, t.Namespace, t.Name, t.Field)
}

// isScaler reports whether the target is an autoscaler, which sets the size of the owner later.
func (t sizeTarget) isScaler() bool { return t.Field != "replicas" }

// sizeState is one read of a target.
type sizeState struct {
	value           *int32
	resourceVersion string
	managers        []string          // of the field
	passedOn        bool              // a controller has set the size because of the target
	workload        *kubeapi.Workload // the target, unless it is an autoscaler
}

// isOurs reports whether the field has the value, and Slipway is its only manager. A field without managers counts as
// ours, because no client claims its value.
func (z sizeState) isOurs(value int32) bool {
	return z.value != nil && *z.value == value && len(z.otherManagers()) == 0
}

// otherManagers returns the managers of the field other than Slipway. If the target was deleted, the controllers that passed the raise on
// do not count either.
func (z sizeState) otherManagers() []string {
	return slices.DeleteFunc(slices.Clone(z.managers), func(m string) bool {
		return m == FieldManager || z.passedOn && m == controllerManager
	})
}

// changedBy names who has set the field, for a person.
func (z sizeState) changedBy() string {
	if others := z.otherManagers(); len(others) > 0 {
		return strings.Join(others, ", ")
	}
	return "a client without a field manager"
}

func isSame[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

// toMinSize returns the size that a field means. An autoscaler without a minimum keeps one pod.
func toMinSize(v *int32) int32 {
	if v == nil {
		return 1
	}
	return *v
}

func formatSize(v *int32) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprint(*v)
}

// errTargetGone: the target was deleted, or replaced by another object of the same name.
var errTargetGone = errors.New("the object no longer exists")

// readSize reads the field of a target. The error is errTargetGone if no object has the target's UID.
func (s *Surger) readSize(ctx context.Context, t sizeTarget) (sizeState, error) {
	var meta *kubeapi.ManagedMeta
	var value *int32
	var workload *kubeapi.Workload
	err := do(ctx, func(ctx context.Context) error {
		switch t.Kind {
		case "HorizontalPodAutoscaler":
			h, err := s.api.GetHorizontalPodAutoscaler(ctx, t.ref())
			if err == nil {
				meta, value = &h.ManagedMeta, h.Spec.MinReplicas
			}
			return err
		case "ScaledObject":
			o, err := s.api.GetScaledObject(ctx, t.ref())
			if err == nil {
				meta, value = &o.ManagedMeta, o.Spec.MinReplicaCount
			}
			return err
		}
		w, err := s.api.GetWorkload(ctx, t.ref())
		if err == nil {
			meta, value, workload = &w.ManagedMeta, w.Spec.Replicas, w
		}
		return err
	})
	switch {
	case kubeapi.IsNotFound(err), err == nil && meta.UID != t.UID, s.isKindGone(ctx, t, err):
		return sizeState{}, errTargetGone
	case err != nil:
		return sizeState{}, fmt.Errorf("read %s: %w", t, err)
	}
	return sizeState{
		value: value, resourceVersion: meta.ResourceVersion, managers: meta.SpecFieldManagers(t.Field), workload: workload,
	}, nil
}

// hasNoObject reports whether an object was not found, or its whole kind.
func hasNoObject(err error) bool {
	e := kubeapi.ToStatusError(err)
	return e != nil && e.Code == http.StatusNotFound
}

// customKinds are the kinds of sizeFields that have a CustomResourceDefinition.
var customKinds = []string{"Rollout", "CloneSet", "ScaledObject"}

// isKindGone reports whether the error of a read means that the CustomResourceDefinition of a target was deleted, and with it the
// target. Such an answer has no Status, so it may come from a proxy. It counts if the API server answers another request.
func (s *Surger) isKindGone(ctx context.Context, t sizeTarget, err error) bool {
	if !slices.Contains(customKinds, t.Kind) || !hasNoObject(err) {
		return false
	}
	_, err = call(ctx, func(ctx context.Context) ([]kubeapi.HorizontalPodAutoscaler, error) {
		return s.api.ListHorizontalPodAutoscalers(ctx, t.Namespace)
	})
	return err == nil
}

// writeSize sets the field of a target that has not changed since it was read.
func (s *Surger) writeSize(ctx context.Context, t sizeTarget, resourceVersion string, value *int32) error {
	change := kubeapi.SizeChange{
		Object: t.ref(), UID: t.UID, ResourceVersion: resourceVersion, Size: value, FieldManager: FieldManager,
	}
	err := do(ctx, func(ctx context.Context) error {
		if t.isScaler() {
			return s.api.SetMinSize(ctx, change)
		}
		return s.api.SetReplicas(ctx, change)
	})
	if err != nil {
		return fmt.Errorf("set %s to %s: %w", t, formatSize(value), err)
	}
	return nil
}

// lower takes back the raise of a record, if the field still has the raised value and Slipway is its only manager. It
// retries until the object has answered or ctx ends. It lowers the target only while h is held, or if h is nil. If the machine was
// suspended, another surge may have raised the size. changedBy names the client that set another value, if any.
func (s *Surger) lower(ctx context.Context, h *hold, r *record) (changedBy string, last sizeState, err error) {
	for {
		z, err := s.readSize(ctx, r.Target)
		switch {
		case errors.Is(err, errTargetGone):
			return "", z, s.lowerRemaining(ctx, r)
		case err == nil && isSame(z.value, r.From):
			return "", z, nil
		case err == nil && !z.isOurs(r.To):
			return z.changedBy(), z, nil
		case err == nil && h != nil && h.isLost():
			return "", z, errRecordLost
		case err == nil && h != nil && !h.isHeld():
			err = errNotRenewed
		case err == nil:
			err = s.writeSize(ctx, r.Target, z.resourceVersion, r.From)
		}
		if err == nil {
			return "", z, nil
		}
		if pauseErr := pauseAfter(ctx, err); pauseErr != nil {
			return "", z, pauseErr
		}
	}
}

// lowerRemaining takes back the raise of a record after its target was deleted. The target has passed the raise on: an autoscaler to its
// Deployment, and a Deployment to its ReplicaSet, which stays after kubectl delete --cascade=orphan. It retries until ctx ends.
func (s *Surger) lowerRemaining(ctx context.Context, r *record) error {
	for _, t := range r.remainingTargets() {
		for {
			z, err := s.readRemaining(ctx, r, t)
			if errors.Is(err, errTargetGone) {
				break
			}
			if err == nil && !z.isOurs(r.To) {
				return nil
			}
			if err == nil {
				to := r.To - 1
				err = s.writeSize(ctx, t, z.resourceVersion, &to)
			}
			if err == nil {
				return nil
			}
			if err := pauseAfter(ctx, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// remainingTargets returns the sizes that may be raised after the target was deleted: of the owner that it sized, and of the ReplicaSet.
func (r *record) remainingTargets() (all []sizeTarget) {
	add := func(apiVersion, kind, name, uid string) {
		t := sizeTarget{APIVersion: apiVersion, Kind: kind, Namespace: r.Target.Namespace, Name: name, UID: uid, Field: "replicas"}
		isNew := uid != "" && uid != r.Target.UID && !slices.ContainsFunc(all, func(o sizeTarget) bool { return o.UID == uid })
		if isNew && isSized(apiVersion, kind) && sizeFields[kind].field == t.Field {
			all = append(all, t)
		}
	}
	add(r.Owner.APIVersion, r.Owner.Kind, r.Owner.Name, r.Owner.UID)
	below := r.controllerRef()
	add(below.APIVersion, below.Kind, below.Name, r.ReplicaSet.UID)
	return all
}

// readRemaining reads the size of what is left of the target of a record. The value is nil if another object sizes it now.
func (s *Surger) readRemaining(ctx context.Context, r *record, t sizeTarget) (sizeState, error) {
	hpa, err := s.findAutoscaler(ctx, t.ref())
	var refused *refusal
	switch {
	case errors.As(err, &refused) && refused.reason == ReasonScalerConflict:
		return sizeState{}, nil
	case err != nil:
		return sizeState{}, err
	case hpa != nil:
		if c := controllerOf(&hpa.ObjectMeta); c != nil && c.UID == r.Target.UID {
			return sizeState{}, fmt.Errorf("the HorizontalPodAutoscaler %s/%s of the deleted %s still exists", hpa.Namespace, hpa.Name, r.Target.Kind)
		}
		return sizeState{}, nil
	}
	z, err := s.readSize(ctx, t)
	if err != nil {
		return z, err
	}
	z.passedOn = true
	if w := z.workload; w.DeletionTimestamp != nil || t.Kind == "ReplicaSet" && controllerOf(&w.ObjectMeta) != nil {
		z.value = nil
	}
	return z, nil
}

// pauseAfter waits before a request is repeated that returned err. It returns the error if a repetition is useless, or
// if ctx has ended.
func pauseAfter(ctx context.Context, err error) error {
	pause := retryPause
	switch e := kubeapi.ToStatusError(err); {
	case kubeapi.IsConflict(err):
		pause = conflictPause
	case e != nil && e.Code == 429:
		pause = max(retryPause, min(e.RetryAfter, requestTimeout))
	case !kubeapi.UnknownResult(err):
		return err
	}
	if !elapsed.Sleep(ctx, pause) {
		return err
	}
	return nil
}

// targetSize is the field that sets the size of an owner, its value, and the raised value.
type targetSize struct {
	target sizeTarget
	from   *int32
	to     int32
	// scaler is Kind/name of an autoscaler, or empty.
	scaler          string
	resourceVersion string // of the target
}

// findTarget returns what sets the size of the owner. With a refusal it also returns what it has found.
func (s *Surger) findTarget(ctx context.Context, o owners) (z targetSize, err error) {
	size := o.top.Spec.Replicas
	if size == nil || *size < 1 {
		return z, refuse(ReasonSizeUnknown, "%s %s has size %s: want at least 1", o.ref.Kind, o.ref.Name, formatSize(size))
	}
	t := &z.target
	*t = sizeTarget{
		APIVersion: o.ref.APIVersion, Kind: o.ref.Kind, Namespace: o.ref.Namespace, Name: o.ref.Name, UID: o.top.UID, Field: "replicas",
	}
	z.from, z.to, z.resourceVersion = size, *size+1, o.top.ResourceVersion
	hpa, err := s.findAutoscaler(ctx, o.ref)
	if err != nil || hpa == nil {
		return z, err
	}
	maxSize := hpa.Spec.MaxReplicas
	if c := controllerOf(&hpa.ObjectMeta); c != nil && c.Kind == "ScaledObject" && isSized(c.APIVersion, c.Kind) {
		t.APIVersion, t.Kind, t.Name, t.UID, t.Field = c.APIVersion, c.Kind, c.Name, c.UID, "minReplicaCount"
		scaled, err := call(ctx, func(ctx context.Context) (*kubeapi.ScaledObject, error) { return s.api.GetScaledObject(ctx, t.ref()) })
		switch {
		case hasNoObject(err), err == nil && scaled.UID != t.UID:
			return z, refuse(ReasonDeleting, "%s of the HorizontalPodAutoscaler %s no longer exists", t, hpa.Name)
		case err != nil:
			return z, toRefusal("read "+t.String(), err)
		}
		z.from, z.resourceVersion, maxSize = scaled.Spec.MinReplicaCount, scaled.ResourceVersion, defaultMaxReplicaCount
		if scaled.Spec.MaxReplicaCount != nil {
			maxSize = *scaled.Spec.MaxReplicaCount
		}
	} else {
		t.APIVersion, t.Kind, t.Name, t.UID, t.Field = "autoscaling/v2", "HorizontalPodAutoscaler", hpa.Name, hpa.UID, "minReplicas"
		z.from, z.resourceVersion = hpa.Spec.MinReplicas, hpa.ResourceVersion
	}
	z.scaler = t.Kind + "/" + t.Name
	if detail := findLoweringObstacle(hpa); detail != "" {
		return z, refuse(ReasonScalerStuck, "the HorizontalPodAutoscaler %s would not lower the size again: %s", hpa.Name, detail)
	}
	if z.to = max(*size, toMinSize(z.from)) + 1; z.to > maxSize {
		return z, refuse(ReasonAtMaximum, "%s %s allows at most %d pods, and %d would be needed", t.Kind, t.Name, maxSize, z.to)
	}
	return z, nil
}

// findLoweringObstacle returns why an autoscaler would keep a raised size after its minimum is restored; empty if it lowers
// the size.
func findLoweringObstacle(hpa *kubeapi.HorizontalPodAutoscaler) string {
	if hpa.Spec.Behavior.ScaleDown.SelectPolicy == "Disabled" {
		return "spec.behavior.scaleDown.selectPolicy is Disabled"
	}
	for _, c := range hpa.Status.Conditions {
		if (c.Type == "ScalingActive" || c.Type == "AbleToScale") && c.Status == "False" {
			return fmt.Sprintf("its condition %s is False: %s", c.Type, cmp.Or(c.Message, c.Reason))
		}
	}
	return ""
}

// findAutoscaler returns the HorizontalPodAutoscaler that sizes the object, or nil.
func (s *Surger) findAutoscaler(ctx context.Context, ref kubeapi.ObjectRef) (*kubeapi.HorizontalPodAutoscaler, error) {
	all, err := s.listAutoscalers(ctx, ref.Namespace)
	if err != nil {
		return nil, toRefusal("list the HorizontalPodAutoscalers of namespace "+ref.Namespace, err)
	}
	var found *kubeapi.HorizontalPodAutoscaler
	for i := range all {
		target := all[i].Spec.ScaleTargetRef
		if target.Kind != ref.Kind || target.Name != ref.Name || target.APIVersion != "" && groupOf(target.APIVersion) != groupOf(ref.APIVersion) {
			continue
		}
		if found != nil {
			return nil, refuse(ReasonScalerConflict, "the HorizontalPodAutoscalers %s and %s size %s %s", found.Name, all[i].Name, ref.Kind, ref.Name)
		}
		found = &all[i]
	}
	return found, nil
}
